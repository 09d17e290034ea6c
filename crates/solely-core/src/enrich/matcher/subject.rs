//! A place as candidates are held against it: what its name, its city and its address say. Here the link, the city and
//! the address of a candidate are weighed; the name is in [`super::name`].

use super::address::{Address, Evidence};
use super::city::{self, City, Whereabouts, without_city};
use super::link::{self, Page};
use super::name::{is_same, says_something};
use super::seen::Seen;
use super::text::{self, Script, Word};
use super::vocabulary::Meaning;
use super::{Candidate, Case, Judged, Place, Why};

/// A place, prepared.
pub(super) struct Subject<'a> {
    pub(super) hosts: &'a [String],
    /// Names of the provider, which titles end with.
    pub(super) brands: Vec<String>,
    /// The name, in each script that it is given in. Noise and the kind of place left out.
    pub(super) names: Vec<Vec<Word>>,
    /// Words of the name that may be a branch's.
    pub(super) branch: Vec<Word>,
    /// All its words,
    pub(super) whole: Vec<Word>,
    /// and those of its first part.
    pub(super) first: Vec<Word>,
    pub(super) city: Option<City>,
    pub(super) address_city: Option<City>,
    pub(super) address: Address,
    /// Whether all that is telling of the name is the street's or the city's.
    pub(super) is_weak: bool,
    /// Whether the city is part of the name.
    pub(super) has_own_city: bool,
    /// Whether it is so short, or known without a city, that a dish beside it makes another name.
    pub(super) is_faint: bool,
    /// Its words, if it has more than a street.
    pub(super) address_words: Vec<Word>,
}

impl<'a> Subject<'a> {
    pub(super) fn of(place: &Place, hosts: &'a [String]) -> Self {
        let city = place.city_text.as_deref().map(text::head).and_then(City::of);
        let address_text = text::head(place.address_text.as_deref().unwrap_or_default());
        let address_city = City::of_address(address_text);
        let near = city.as_ref().or(address_city.as_ref());
        let address = Address::of(address_text, near);
        let parts = text::name_parts(&place.name);
        let whole: Vec<Word> = parts.iter().flatten().cloned().collect();
        let core = |part: &[Word]| {
            let part = without_maker(part);
            let rest: Vec<Word> = without_city(part, near).into_iter().filter(says_something).collect();
            // A name may be a city's.
            if parts.len() > 1 || rest.iter().any(Word::is_telling) {
                rest
            } else {
                part.iter().filter(|word| says_something(word)).cloned().collect()
            }
        };
        let mut names: Vec<Vec<Word>> = Vec::new();
        let mut branch = Vec::new();
        for part in &parts {
            let core = core(part);
            if !core.iter().any(Word::is_telling) {
                continue;
            }
            let another_script = names.iter().all(|name| name[0].script != core[0].script);
            let again = names.iter().any(|name| is_same(name, &core));
            if names.is_empty() || another_script {
                names.push(core);
            } else if !again {
                branch.extend(core.into_iter().filter(Word::is_telling));
            }
        }
        let telling =
            |name: &Vec<Word>| name.iter().filter(|word| word.is_telling()).all(|word| address.has(word));
        let of_city = |name: &Vec<Word>| !without_city(name, near).iter().any(Word::is_telling);
        let has_own_city = !names.is_empty() && names.iter().any(of_city);
        let is_weak = !names.is_empty() && (has_own_city || names.iter().all(telling));
        let letters = |name: &Vec<Word>| {
            name.iter().filter(|word| word.is_telling()).map(|word| word.text.chars().count()).sum::<usize>()
        };
        let is_faint = near.is_none() || names.iter().any(|name| letters(name) < 4);
        let brands = hosts.iter().flat_map(|host| host.split('.')).filter(|label| label.len() > 3);
        Self {
            hosts,
            brands: brands.map(str::to_lowercase).collect(),
            names,
            branch,
            first: parts.first().cloned().unwrap_or_default(),
            whole,
            city,
            address_city,
            address,
            is_weak,
            has_own_city,
            is_faint,
            address_words: if address_text.contains(',') { text::words(address_text) } else { Vec::new() },
        }
    }

    /// In Hebrew `from` and `in` are written at the word: a word of the name behind such a letter is that word.
    pub(super) fn without_prefixes(&self, words: Vec<Word>) -> Vec<Word> {
        let names = self.names.iter().flatten().filter(|word| word.script == Script::Hebrew);
        let bare = |word: &Word| {
            let rest = word.text.strip_prefix(['מ', 'ב', 'ל'])?;
            let ours = names.clone().find(|ours| ours.text == rest);
            ours.cloned()
        };
        words.into_iter().map(|word| bare(&word).unwrap_or(word)).collect()
    }

    pub(super) fn judge(&self, candidate: &Candidate) -> Judged {
        match link::page(&candidate.url, self.hosts) {
            Ok(page) => {
                let seen = Seen::of(self, candidate, &page);
                let title = self.best_of(&seen.title_rest);
                let city: Vec<&str> = page.city.iter().flatten().map(|word| word.text.as_str()).collect();
                let namesake = (title.found > 0 && title.missing.is_empty()).then(|| city.join(" "));
                Judged { case: self.weigh(&seen, &page), venue: page.venue, namesake }
            }
            Err(why) => Judged { venue: String::new(), namesake: None, case: Err(why) },
        }
    }

    fn weigh(&self, seen: &Seen, page: &Page) -> Result<Case, Why> {
        let mut case = Case { score: 0.0, why: Vec::new() };
        let address = self.look_at_address(seen);
        self.weigh_city(seen, page, address, &mut case)?;
        match address {
            Evidence::Other => return Err(Why::OtherAddress),
            Evidence::Nothing => {}
            Evidence::Street => case.add(0.06, Why::SameStreet),
            Evidence::House => case.add(0.12, Why::SameAddress),
        }
        if self.names.is_empty() {
            self.weigh_generic(seen, address, &mut case)?;
        } else {
            self.weigh_name(seen, address, &mut case)?;
        }
        case.score = case.score.min(1.0);
        Ok(case)
    }

    /// Whether it has a word such as `on` or `of`, which makes its order telling.
    pub(super) fn has_noise_inside(&self) -> bool {
        self.whole.iter().skip(1).any(|word| word.meaning == Meaning::Noise)
    }

    /// The city that is searched in, or the address's.
    pub(super) fn near(&self) -> Option<&City> {
        self.city.as_ref().or(self.address_city.as_ref())
    }

    fn weigh_city(&self, seen: &Seen, page: &Page, address: Evidence, case: &mut Case) -> Result<(), Why> {
        let Some(city) = self.near() else { return self.weigh_unknown_city(page) };
        let ours = [Some(city), self.address_city.as_ref()];
        let mut ours = ours.into_iter().flatten();
        let in_text = || {
            let texts = seen.title.iter().chain(&seen.snippet);
            texts.into_iter().any(|part| city.is_named_in(part))
        };
        if let Some(other) = seen.title_city
            && ours.clone().all(|ours| ours.is_not(other))
            && address < Evidence::House
        {
            return Err(Why::OtherCity);
        }
        match &page.city {
            Some(slug) => {
                let whereabouts: Vec<Whereabouts> = ours.map(|ours| ours.whereabouts(slug)).collect();
                let best = [Whereabouts::Here, Whereabouts::InArea]
                    .into_iter()
                    .find(|best| whereabouts.contains(best));
                match best.unwrap_or(whereabouts[0]) {
                    Whereabouts::InArea if !in_text() && seen.names_another(city) => {
                        return Err(Why::OtherCity);
                    }
                    Whereabouts::Here | Whereabouts::InArea => case.add(0.08, Why::CityInPath),
                    Whereabouts::NextDoor | Whereabouts::Unclear if in_text() => {
                        case.add(0.06, Why::CityInText);
                    }
                    Whereabouts::Elsewhere | Whereabouts::NextDoor => return Err(Why::OtherCity),
                    Whereabouts::Unclear => return Err(Why::CityUnclear),
                }
            }
            None if city.is_named_in(&page.slug) => case.add(0.08, Why::CityInPath),
            None if in_text() => case.add(0.06, Why::CityInText),
            None => {
                let other = (0..page.slug.len()).find_map(|at| city::at_start(&page.slug[at..]));
                if other
                    .is_some_and(|(other, _)| ours.all(|ours| ours.is_not(other)) && !self.has_city(other))
                {
                    return Err(Why::OtherCity);
                }
            }
        }
        Ok(())
    }

    /// An address with several parts has a city, known or not: the page's must be in it.
    fn weigh_unknown_city(&self, page: &Page) -> Result<(), Why> {
        let page_city = page.city.as_deref().and_then(City::of_slug);
        let elsewhere = page_city
            .is_some_and(|city| !self.address_words.is_empty() && !city.is_named_in(&self.address_words));
        if elsewhere { Err(Why::OtherCity) } else { Ok(()) }
    }

    /// Whether a city is in the name.
    pub(super) fn has_city(&self, city: usize) -> bool {
        (0..self.whole.len())
            .any(|at| city::at_start(&self.whole[at..]).is_some_and(|(other, _)| other == city))
    }

    fn look_at_address(&self, seen: &Seen) -> Evidence {
        // A name may look like an address.
        let of_name = |part: &&Vec<Word>| self.best_of(std::slice::from_ref(*part)).found > 0;
        let beside = seen.title.iter().filter(|part| !of_name(part));
        let parts: Vec<Vec<Word>> = beside.chain(&seen.snippet).cloned().collect();
        self.address.evidence(&parts, self.near())
    }
}

/// A part of a name without who made it: `Taizu by Yuval`.
fn without_maker(part: &[Word]) -> &[Word] {
    let maker = part.iter().position(|word| matches!(word.text.as_str(), "by" | "מבית"));
    match maker {
        Some(at) if part[..at].iter().any(Word::is_telling) => &part[..at],
        _ => part,
    }
}
