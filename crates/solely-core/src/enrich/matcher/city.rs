//! Cities: one has several names, and a page may lie in an area that has its own.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::gazetteer::{AREAS, CITIES, NEIGHBOURS};
use super::likeness::{Likeness, rows_alike, sound};
use super::link::Page;
use super::name::is_readable;
use super::text::{self, Word};

/// Words that say that a slug names more than a city.
const AREA_WORDS: &[&str] = &["area", "region", "and", "surroundings", "metropolitan"];

/// Words of the longest name.
const NAME_WORDS_MAX: usize = 4;

static NAMES: LazyLock<HashMap<String, usize>> = LazyLock::new(|| {
    let mut names = HashMap::new();
    for (city, spellings) in CITIES.iter().enumerate() {
        for spelling in *spellings {
            names.insert(key(&text::words(spelling)), city);
        }
    }
    names
});

/// Words that a name begins with.
static FIRST_WORDS: LazyLock<HashSet<String>> =
    LazyLock::new(|| NAMES.keys().filter_map(|name| name.split(' ').next()).map(str::to_owned).collect());

/// Hebrew letters that stand before a name.
const PREFIXES: [char; 4] = ['ב', 'מ', 'ל', 'ה'];

/// The names in Latin letters, as they sound.
static SOUNDS: LazyLock<HashMap<String, usize>> = LazyLock::new(|| {
    let latin = NAMES.iter().filter(|(name, _)| name.is_ascii() && name.len() >= SOUND_MIN);
    latin.map(|(name, city)| (sound(&name.replace(' ', "")), *city)).collect()
});

/// Shorter names have no other spelling.
const SOUND_MIN: usize = 6;

/// The city of a name, by any spelling.
fn known(words: &[Word]) -> Option<usize> {
    let name = key(words);
    let by_sound = || {
        let joined = name.replace(' ', "");
        if joined.is_ascii() && joined.len() >= SOUND_MIN { SOUNDS.get(&sound(&joined)) } else { None }
    };
    NAMES.get(&name).or_else(by_sound).copied()
}

fn key(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
}

fn number(name: &str) -> Option<usize> {
    CITIES.iter().position(|spellings| spellings[0] == name)
}

/// The known city whose name begins a row of words, and how many of them it takes. In Hebrew `in` and
/// `from` are written at the word.
pub(super) fn at_start(words: &[Word]) -> Option<(usize, usize)> {
    let first = words.first()?.text.as_str();
    if !FIRST_WORDS.contains(first)
        && !first.strip_prefix(PREFIXES).is_some_and(|rest| FIRST_WORDS.contains(rest))
    {
        return None;
    }
    for count in (1..=words.len().min(NAME_WORDS_MAX)).rev() {
        let name = key(&words[..count]);
        let bare = || {
            let rest = name.strip_prefix(PREFIXES)?;
            NAMES.get(rest)
        };
        if let Some(city) = NAMES.get(&name).or_else(bare) {
            return Some((*city, count));
        }
    }
    None
}

/// Whether words name an area and not only a city, whose name may be in it.
pub(super) fn is_area(words: &[Word]) -> bool {
    words.iter().any(|word| word.text == "area")
}

/// A place's city.
#[derive(Clone, Debug)]
pub(super) struct City {
    /// If it is a known one.
    known: Option<usize>,
    words: Vec<Word>,
}

/// Where a page's city is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In the city.
    Here,
    /// In an area that it belongs to: the page must not say that it is another city's.
    InArea,
    /// With its big neighbour: the page must say that it is the city's.
    NextDoor,
    /// In an area of which it is not known whether the city belongs to it.
    Unclear,
    Elsewhere,
}

impl City {
    /// The city that a text names: what stands before a comma.
    pub(super) fn of(text: &str) -> Option<Self> {
        // A Japanese city may say that it is one.
        let first = text
            .trim_end_matches('市')
            .split([',', '('])
            .find(|part| text::words(part).iter().any(|word| !word.is_number()))?;
        let words: Vec<Word> = text::words(first).into_iter().filter(|word| !word.is_number()).collect();
        let known = known(&words);
        // "Tel Aviv Israel", "Tel Aviv 6433222".
        let known = known.or_else(|| {
            let (city, count) = at_start(&words)?;
            let rest = &words[count..];
            rest.iter().all(|word| !word.is_telling() || word.is_number()).then_some(city)
        });
        (!words.is_empty()).then_some(Self { known, words })
    }

    /// The city that a part of a path names.
    pub(super) fn of_slug(slug: &[Word]) -> Option<Self> {
        let (known, words) = (known(slug), slug.to_vec());
        (!words.is_empty()).then_some(Self { known, words })
    }

    /// The city of an address: the last part of it that is a known one.
    pub(super) fn of_address(address: &str) -> Option<Self> {
        let parts: Vec<&str> = address.split(',').collect();
        parts.iter().enumerate().rev().find_map(|(nth, part)| {
            // A street may have a city's name.
            let city = Self::of(part).filter(|city| city.known.is_some() && (nth > 0 || parts.len() == 1))?;
            Some(city)
        })
    }

    /// How many words, from the first of a row on, are its name; none: 0.
    pub(super) fn named_at_start(&self, words: &[Word]) -> usize {
        if let Some((city, count)) = at_start(words) {
            return if Some(city) == self.known { count } else { 0 };
        }
        // By the spelling that it was asked for with.
        if words.len() >= self.words.len()
            && words.iter().zip(&self.words).all(|(one, other)| one.text == other.text)
        {
            return self.words.len();
        }
        if self.known.is_some() {
            return 0;
        }
        let ours: Vec<&Word> = self.words.iter().collect();
        (1..=words.len().min(NAME_WORDS_MAX))
            .rev()
            .find(|count| {
                let theirs: Vec<&Word> = words[..*count].iter().collect();
                rows_alike(&ours, &theirs) == Likeness::Same
            })
            .unwrap_or(0)
    }

    /// Whether a row of words names it anywhere.
    pub(super) fn is_named_in(&self, words: &[Word]) -> bool {
        (0..words.len()).any(|at| self.named_at_start(&words[at..]) > 0)
    }

    /// Where a page is whose path names a city with this slug.
    pub(super) fn whereabouts(&self, slug: &[Word]) -> Whereabouts {
        if self.is_named_in(slug) {
            return Whereabouts::Here;
        }
        let theirs = at_start(slug);
        let listed = theirs.is_some_and(|(_, count)| count == slug.len());
        let area = AREAS
            .iter()
            .find(|(word, _)| !listed && slug.iter().any(|part| word.contains(&part.text.as_str())));
        let is_area = area.is_some();
        let Some(ours) = self.known else {
            let ours: Vec<&Word> = self.words.iter().collect();
            if rows_alike(&ours, &slug.iter().collect::<Vec<_>>()) != Likeness::Different {
                return Whereabouts::Here;
            }
            let wide = is_area || slug.iter().any(|word| AREA_WORDS.contains(&word.text.as_str()));
            return match theirs {
                _ if wide => Whereabouts::Unclear,
                // A town may be served from a city.
                Some(_) => Whereabouts::NextDoor,
                None => Whereabouts::Elsewhere,
            };
        };
        if let Some((_, cities)) = area
            && cities.iter().any(|name| number(name) == Some(ours))
        {
            return Whereabouts::InArea;
        }
        // A spelling of a known city that is not listed.
        if !listed && !is_area {
            let theirs: Vec<&Word> = slug.iter().collect();
            let alike = CITIES[ours].iter().any(|spelling| {
                let spelling = text::words(spelling);
                rows_alike(&spelling.iter().collect::<Vec<_>>(), &theirs) != Likeness::Different
            });
            if alike {
                return Whereabouts::Here;
            }
        }
        let next_door = NEIGHBOURS.iter().any(|(big, small)| {
            theirs.map(|(city, _)| city) == number(big) && small.iter().any(|name| number(name) == Some(ours))
        });
        if next_door { Whereabouts::NextDoor } else { Whereabouts::Elsewhere }
    }

    /// A word of a path without the city's name, which may be written at it.
    pub(super) fn trim_end(&self, word: &str) -> Option<String> {
        let spellings = CITIES[self.known?].iter().filter(|spelling| spelling.is_ascii());
        let mut names = spellings.map(|spelling| spelling.to_lowercase().replace([' ', '-', '\''], ""));
        let rest = names.find_map(|name| word.strip_suffix(&name).map(str::to_owned))?;
        (rest.len() > 2).then_some(rest)
    }

    /// Whether it is one of those that are known.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Whether a known city is another one.
    pub(super) fn is_not(&self, other: usize) -> bool {
        self.known != Some(other)
    }
}

/// Words without a city's name.
pub(super) fn without_city(words: &[Word], city: Option<&City>) -> Vec<Word> {
    let Some(city) = city else { return words.to_vec() };
    let (mut kept, mut at) = (Vec::with_capacity(words.len()), 0);
    while at < words.len() {
        let named = city.named_at_start(&words[at..]);
        if named == 0 {
            kept.push(words[at].clone());
        }
        at += named.max(1);
    }
    kept
}

/// A path that has the city in it has the name before it, and what lies around the city behind it.
pub(super) fn before_city(slug: &[Word], city: Option<&City>) -> Vec<Word> {
    let is_city = |at: &usize| match city {
        Some(city) => city.named_at_start(&slug[*at..]) > 0,
        None => at_start(&slug[*at..]).is_some(),
    };
    let end = (1..slug.len()).find(|at| slug[..*at].iter().any(is_readable) && is_city(at));
    slug[..end.unwrap_or(slug.len())].to_vec()
}

/// Words without the name of the city that the page's path names.
pub(super) fn without_page_city(words: &[Word], page: &Page) -> Vec<Word> {
    let city = page.city.as_deref().and_then(City::of_slug);
    without_city(words, city.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whereabouts(city: &str, slug: &str) -> Whereabouts {
        City::of(city).expect("a city").whereabouts(&text::slug(slug))
    }

    #[test]
    fn a_city_has_several_names() {
        for (city, slug) in [
            ("Tel Aviv-Yafo, Israel", "tel-aviv"),
            ("תל אביב", "tel-aviv"),
            ("Be'er Sheva", "beer-sheva"),
            ("Gedera", "rishon-lezion-hashfela-area"),
            ("Ashdod", "ashdod-and-lachish-area"),
            ("פתח תקווה", "petah-tikva"),
            ("München", "munich"),
            ("Praha 1", "prague"),
            ("כפר יונה", "kfar-yona"),
            ("Hertzeliya", "herzliya"),
            ("Αθήνα", "athens"),
        ] {
            assert!(
                matches!(whereabouts(city, slug), Whereabouts::Here | Whereabouts::InArea),
                "{city} {slug}"
            );
        }
    }

    #[test]
    fn another_city_is_another() {
        for (city, slug) in [
            ("Tel Aviv", "haifa"),
            ("Jerusalem", "rishon-lezion-hashfela-area"),
            ("Helsinki", "espoo"),
            ("Haifa", "tel-aviv"),
            ("חולון", "ramat-gan"),
        ] {
            assert_eq!(whereabouts(city, slug), Whereabouts::Elsewhere, "{city} {slug}");
        }
        assert_eq!(whereabouts("Ramat Gan", "tel-aviv"), Whereabouts::NextDoor);
        assert_eq!(whereabouts("Kfar Yona", "netanya"), Whereabouts::NextDoor, "a town that is not listed");
        assert_eq!(whereabouts("Somewhere", "north-and-south-area"), Whereabouts::Unclear);
    }

    #[test]
    fn an_address_has_a_city() {
        let city = City::of_address("Jerusalem St 5, Haifa, Israel").expect("a city");
        assert_eq!(city.whereabouts(&text::slug("haifa")), Whereabouts::Here);
    }
}
