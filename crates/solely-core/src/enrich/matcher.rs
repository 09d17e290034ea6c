//! The matcher: which of some candidates is a place's own link, if any is. Pure, no I/O.
//!
//! *No link is better than a wrong one.* A candidate is judged by itself, by rules and not by a sum: what
//! speaks against it ends it, whatever speaks for it.
//!
//! 1. The **link** must be on one of the provider's hosts, and a venue's own page ([`link`]).
//! 2. The **city** must be the place's: in the path, by any of its names or as part of an area, or in the
//!    text; another city is refused ([`city`]). Without a city, the address may have it.
//! 3. The **name**: all words of it that say which place it is must be in the title or in the path, and
//!    nothing that says it is another one ([`likeness`], [`vocabulary`]). A snippet is no evidence of a
//!    name: it may speak of others. A name of generic words alone is none either; it needs the same street and
//!    number.
//! 4. The **address**, if both have one, must not be another; a word that only one side has may be a branch's
//!    ([`address`]).
//!
//! Of those that are left the best is taken; if two venues are equally good, neither.
//!
//! The work is linear in the number of candidates: of each text only a beginning is looked at.

mod address;
mod city;
mod hebrew;
mod likeness;
mod link;
mod text;
mod vocabulary;

use serde::Serialize;

use super::finder::{Candidate, Place};
use address::{Address, Evidence};
use city::{City, Whereabouts};
use likeness::{Likeness, alike, cover};
use link::Page;
pub use link::is_allowed;
use text::{Script, Word};
use vocabulary::Meaning;

/// What was decided, and why.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The candidate that is the place's own link, if there is one.
    pub accepted: Option<Accepted>,
    /// What was thought of each.
    pub verdicts: Vec<Verdict>,
}

/// A candidate that was accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Which one.
    pub candidate: usize,
    /// Its link, without what only tells where a visitor came from.
    pub url: String,
    /// How sure it is, up to 1.
    pub score: f64,
    /// What speaks for it.
    pub why: Vec<Why>,
}

/// What is thought of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// How sure it is, up to 1; nothing if it is refused.
    pub score: Option<f64>,
    /// What speaks for it, or what ended it.
    pub why: Vec<Why>,
}

/// A reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The title is the name.
    NameInTitle,
    /// The path's last part is the name.
    NameInPath,
    /// A word of the name is written a little differently.
    SpeltDifferently,
    /// The path is of the city, or of its area.
    CityInPath,
    /// The title or the snippet names the city.
    CityInText,
    /// The same street.
    SameStreet,
    /// The same street and number.
    SameAddress,
    /// Not on one of the provider's hosts.
    HostRefused,
    /// Not a venue's own page.
    PathRefused,
    /// It is in another city.
    OtherCity,
    /// It is in an area, and does not say that it is of the city.
    CityUnclear,
    /// It is another name.
    OtherName,
    /// The title and the path name different places.
    TitleAndPathDiffer,
    /// It serves something else.
    OtherDish,
    /// It is a shop of that name.
    OtherShop,
    /// It is another kind of place.
    OtherKind,
    /// It is another branch, or may be.
    OtherBranch,
    /// It has another address.
    OtherAddress,
    /// The name says nothing, and the address is not the same.
    NameSaysNothing,
    /// Another venue is as good.
    Ambiguous,
}

impl Why {
    /// For a person.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NameInTitle => "the title is the name",
            Self::NameInPath => "the path has the name",
            Self::SpeltDifferently => "a word of the name is written a little differently",
            Self::CityInPath => "the path is of the city",
            Self::CityInText => "the text names the city",
            Self::SameStreet => "it is in the same street",
            Self::SameAddress => "it is at the same street and number",
            Self::HostRefused => "the link is not on an allowed host",
            Self::PathRefused => "the link is not a venue's own page",
            Self::OtherCity => "it is in another city",
            Self::CityUnclear => "its area may not be the city's, and it does not say so",
            Self::OtherName => "it is another name",
            Self::TitleAndPathDiffer => "its title and its path name different places",
            Self::OtherDish => "it serves something else",
            Self::OtherKind => "it is another kind of place",
            Self::OtherShop => "it is a shop of that name",
            Self::OtherBranch => "it may be another branch",
            Self::OtherAddress => "it has another address",
            Self::NameSaysNothing => "the name is of generic words alone, and the address is not the same",
            Self::Ambiguous => "another venue is as good",
        }
    }
}

/// Of two venues one must be better by this much.
const MARGIN: f64 = 0.02;

/// Decides. Of several the best, and of one venue's pages the first.
pub fn decide(place: &Place, hosts: &[String], candidates: &[Candidate]) -> Decision {
    let subject = Subject::of(place, hosts);
    let mut judged: Vec<Judged> = candidates.iter().map(|candidate| subject.judge(candidate)).collect();
    let mut best: Option<usize> = None;
    for (nth, one) in judged.iter().enumerate() {
        if let Ok(case) = &one.case
            && best.and_then(|best| judged[best].score()).is_none_or(|best| case.score > best)
        {
            best = Some(nth);
        }
    }
    if let Some(first) = best {
        let score = judged[first].score().unwrap_or_default();
        let rivals = |one: &Judged| {
            one.venue != judged[first].venue && one.score().is_some_and(|other| score - other < MARGIN)
        };
        // Where nobody knows the city, one of its name elsewhere is as good.
        let elsewhere = |one: &Judged| {
            let cities = (&one.namesake, &judged[first].namesake);
            subject.near().is_none() && matches!(cities, (Some(one), Some(other)) if one != other)
        };
        if judged.iter().any(rivals) || judged.iter().any(elsewhere) {
            for one in &mut judged {
                if one.score().is_some_and(|other| score - other < MARGIN) {
                    one.case = Err(Why::Ambiguous);
                }
            }
            best = None;
        }
    }
    let accepted = best.and_then(|nth| {
        let case = judged[nth].case.as_ref().ok()?;
        let url = link::without_tracking(&candidates[nth].url);
        Some(Accepted { candidate: nth, url, score: case.score, why: case.why.clone() })
    });
    let verdicts = judged.into_iter().map(|judged| match judged.case {
        Ok(case) => Verdict { score: Some(case.score), why: case.why },
        Err(why) => Verdict { score: None, why: vec![why] },
    });
    Decision { accepted, verdicts: verdicts.collect() }
}

/// Whether a city, by any of its names, is the one that a slug or another name means.
pub fn is_in(city: &str, slug: &str) -> bool {
    let here =
        |city: City| matches!(city.whereabouts(&text::slug(slug)), Whereabouts::Here | Whereabouts::InArea);
    City::of(city).is_some_and(here)
}

struct Judged {
    venue: String,
    /// Its city, if it has the name or more.
    namesake: Option<String>,
    case: Result<Case, Why>,
}

impl Judged {
    fn score(&self) -> Option<f64> {
        self.case.as_ref().ok().map(|case| case.score)
    }
}

/// What speaks for a candidate.
#[derive(Clone, Debug)]
struct Case {
    score: f64,
    why: Vec<Why>,
}

/// A place, prepared.
struct Subject<'a> {
    hosts: &'a [String],
    /// Names of the provider, which titles end with.
    brands: Vec<String>,
    /// The name, in each script that it is given in. Noise and the kind of place left out.
    names: Vec<Vec<Word>>,
    /// Words of the name that may be a branch's.
    branch: Vec<Word>,
    /// All its words,
    whole: Vec<Word>,
    /// and those of its first part.
    first: Vec<Word>,
    city: Option<City>,
    address_city: Option<City>,
    address: Address,
    /// Whether all that is telling of the name is the street's or the city's.
    is_weak: bool,
    /// Whether the city is part of the name.
    has_own_city: bool,
    /// Whether it has a word such as `on` or `of`, which makes its order telling.
    has_noise_inside: bool,
    /// Its words, if it has more than a street.
    address_words: Vec<Word>,
}

impl<'a> Subject<'a> {
    fn of(place: &Place, hosts: &'a [String]) -> Self {
        let city = place.city_text.as_deref().map(text::head).and_then(City::of);
        let address_text = text::head(place.address_text.as_deref().unwrap_or_default());
        let address_city = City::of_address(address_text);
        let near = city.as_ref().or(address_city.as_ref());
        let address = Address::of(address_text, near);
        let parts = text::name_parts(&place.name);
        let whole: Vec<Word> = parts.iter().flatten().cloned().collect();
        let core = |part: &[Word]| {
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
        let has_noise_inside = whole.iter().skip(1).any(|word| word.meaning == Meaning::Noise);
        let is_weak = !names.is_empty() && (has_own_city || names.iter().all(telling));
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
            has_noise_inside,
            address_words: if address_text.contains(',') { text::words(address_text) } else { Vec::new() },
        }
    }

    /// In Hebrew `from` and `in` are written at the word: a word of the name behind such a letter is that word.
    fn without_prefixes(&self, words: Vec<Word>) -> Vec<Word> {
        let names = self.names.iter().flatten().filter(|word| word.script == Script::Hebrew);
        let bare = |word: &Word| {
            let rest = word.text.strip_prefix(['מ', 'ב', 'ל'])?;
            let ours = names.clone().find(|ours| ours.text == rest);
            ours.cloned()
        };
        words.into_iter().map(|word| bare(&word).unwrap_or(word)).collect()
    }

    fn judge(&self, candidate: &Candidate) -> Judged {
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
        self.weigh_city(seen, page, &mut case)?;
        let address = self.weigh_address(seen, &mut case)?;
        if self.names.is_empty() {
            self.weigh_generic(seen, address, &mut case)?;
        } else {
            self.weigh_name(seen, address, &mut case)?;
        }
        case.score = case.score.min(1.0);
        Ok(case)
    }

    /// The city that is searched in, or the address's.
    fn near(&self) -> Option<&City> {
        self.city.as_ref().or(self.address_city.as_ref())
    }

    fn weigh_city(&self, seen: &Seen, page: &Page, case: &mut Case) -> Result<(), Why> {
        let Some(city) = self.near() else { return self.weigh_unknown_city(page) };
        let ours = [Some(city), self.address_city.as_ref()];
        let mut ours = ours.into_iter().flatten();
        let in_text = || {
            let texts = seen.title.iter().chain(&seen.snippet);
            texts.into_iter().any(|part| city.is_named_in(part))
        };
        if let Some(other) = seen.title_city
            && ours.clone().all(|ours| ours.is_not(other))
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
                    Whereabouts::Elsewhere => return Err(Why::OtherCity),
                    Whereabouts::NextDoor | Whereabouts::Unclear if in_text() => {
                        case.add(0.06, Why::CityInText)
                    }
                    Whereabouts::NextDoor => return Err(Why::OtherCity),
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
    fn has_city(&self, city: usize) -> bool {
        (0..self.whole.len())
            .any(|at| city::at_start(&self.whole[at..]).is_some_and(|(other, _)| other == city))
    }

    fn weigh_address(&self, seen: &Seen, case: &mut Case) -> Result<Evidence, Why> {
        // A name may look like an address.
        let of_name = |part: &&Vec<Word>| self.best_of(std::slice::from_ref(*part)).found > 0;
        let beside = seen.title.iter().filter(|part| !of_name(part));
        let parts: Vec<Vec<Word>> = beside.chain(&seen.snippet).cloned().collect();
        let evidence = self.address.evidence(&parts, self.near());
        match evidence {
            Evidence::Other => return Err(Why::OtherAddress),
            Evidence::Nothing => {}
            Evidence::Street => case.add(0.06, Why::SameStreet),
            Evidence::House => case.add(0.12, Why::SameAddress),
        }
        Ok(evidence)
    }

    /// A name that says nothing must be the whole title or path, at the same address. One of several dishes says a
    /// little: it may be both, in its city.
    fn weigh_generic(&self, seen: &Seen, address: Evidence, case: &mut Case) -> Result<(), Why> {
        let (in_title, in_slug) =
            (seen.title_rest.iter().any(|part| self.is_all(part)), self.is_all(&seen.slug));
        let dishes = self.whole.iter().filter(|word| matches!(word.meaning, Meaning::Dish(_))).count();
        let says_a_little = dishes > 1 && in_title && in_slug && case.why.contains(&Why::CityInPath);
        if address != Evidence::House && !says_a_little {
            return Err(Why::NameSaysNothing);
        }
        if in_title {
            case.add(0.6, Why::NameInTitle);
        } else if in_slug {
            case.add(0.6, Why::NameInPath);
        } else {
            return Err(Why::OtherName);
        }
        Ok(())
    }

    fn weigh_name(&self, seen: &Seen, address: Evidence, case: &mut Case) -> Result<(), Why> {
        let title = self.best_of(&seen.title_rest);
        let slug = self.best_of(std::slice::from_ref(&seen.slug));
        if [&title, &slug].into_iter().any(|fit| fit.dish_differs && fit.found > 0) {
            return Err(Why::OtherDish);
        }
        let (in_title, in_slug) = (
            title.is_full(address) || seen.title_whole.iter().any(|part| self.is_written(part)),
            slug.is_full(address) || self.is_written(&seen.slug_whole),
        );
        let slug_says = seen.slug.iter().any(is_readable);
        // What the title has besides the name, in its other parts.
        let beside: Vec<&Word> = seen.beside(self, &title);
        let branch_found = self.branch.iter().all(|word| seen.has(word) || self.address.has(word));
        // Many words are no branch, but praise.
        let praise = self.branch.len() > 2 && in_title && in_slug;
        if !branch_found && !praise && address < Evidence::House {
            return Err(Why::OtherBranch);
        }
        if title.surrounded {
            return Err(Why::OtherName);
        }
        if address < Evidence::House && self.is_of_another_kind(seen) {
            return Err(Why::OtherKind);
        }
        if self.is_sister(seen) {
            return Err(Why::OtherShop);
        }
        if self.has_own_city
            && !(seen.title_rest.iter().any(|part| self.is_all(part)) && self.is_all(&seen.slug))
        {
            return Err(Why::NameSaysNothing);
        }
        if self.is_weak && !(title.is_alone() && beside.is_empty()) && !slug.is_alone() {
            return Err(Why::NameSaysNothing);
        }
        let base = match (in_title, in_slug) {
            (true, true) => 0.8,
            (true, false) if !slug_says => self.unless_beside(&beside, address, 0.74)?,
            (true, false) if slug.close > 0 && slug.of == 1 && address < Evidence::House => {
                return Err(Why::TitleAndPathDiffer);
            }
            (true, false) if slug.found > 0 || slug.shares_dish => {
                let more: Vec<&Word> = slug.extra.iter().collect();
                self.unless_beside(&more, address, 0.68)?;
                self.unless_beside(&beside, address, 0.68)?
            }
            // The path says what the title says.
            (true, false) if seen.agrees(slug.found) => self.unless_beside(&beside, address, 0.72)?,
            (true, false) => {
                let told = seen.snippet.iter().any(|part| self.best_of(std::slice::from_ref(part)).found > 0);
                let unreadable = self.names.iter().any(|name| name[0].script == Script::Other);
                if address >= Evidence::Street || ((told || unreadable) && self.is_foreign(&seen.slug)) {
                    0.62
                } else {
                    return Err(Why::TitleAndPathDiffer);
                }
            }
            (false, true)
                if !seen.title_says() || (title.found > 0 && title.extra.is_empty() && beside.is_empty()) =>
            {
                0.7
            }
            (false, true) if title.found == 0 && seen.title_rest.iter().all(|part| self.is_foreign(part)) => {
                0.64
            }
            (false, true) if title.found == 0 => return Err(Why::TitleAndPathDiffer),
            (false, true) => {
                return Err(if title.missing.is_empty() { Why::OtherBranch } else { Why::OtherName });
            }
            (false, false) => {
                let missing_nowhere = title
                    .missing
                    .iter()
                    .all(|word| seen.slug.iter().any(|theirs| alike(word, theirs) == Likeness::Same));
                let complete = title.found > 0
                    && slug.found > 0
                    && title.extra.is_empty()
                    && slug.extra.is_empty()
                    && beside.is_empty();
                let in_order = title.in_order && slug.in_order;
                if complete && missing_nowhere && in_order && title.close + slug.close == 0 {
                    0.64
                } else if title.missing.is_empty() && title.found > 0 {
                    return Err(Why::OtherBranch);
                } else {
                    return Err(Why::OtherName);
                }
            }
        };
        case.score += base;
        if in_title {
            case.why.insert(0, Why::NameInTitle);
        }
        if in_slug || !in_title {
            case.why.insert(0, Why::NameInPath);
        }
        if title.close + slug.close > 0 {
            case.add(-0.05, Why::SpeltDifferently);
        }
        Ok(())
    }

    /// Whether both say what they are or serve, and it is not the same. All are restaurants.
    fn is_of_another_kind(&self, seen: &Seen) -> bool {
        let kinds = |words: &[Word]| -> Vec<Meaning> {
            let says = |meaning: &Meaning| meaning.is_special_kind() || matches!(meaning, Meaning::Dish(_));
            words.iter().map(|word| word.meaning).filter(says).collect()
        };
        let (ours, theirs) = (kinds(&self.whole), kinds(&seen.title_rest.concat()));
        !ours.is_empty() && !theirs.is_empty() && ours.iter().all(|kind| !theirs.contains(kind))
    }

    /// Whether words are the whole name, with its kind and its dish, and nothing else.
    fn is_all(&self, words: &[Word]) -> bool {
        let near = self.near().filter(|_| !self.has_own_city);
        let says = |words: Vec<Word>| -> Vec<Word> {
            words.into_iter().filter(|word| word.meaning != Meaning::Noise).collect()
        };
        let whole = says(without_city(&self.whole, near));
        let cover = cover(&whole, &says(words.to_vec()));
        !whole.is_empty() && cover.missing.is_empty() && cover.extra.is_empty()
    }

    /// Whether words are the name letter by letter, spaces apart.
    fn is_written(&self, words: &[Word]) -> bool {
        let name: Vec<Word> = without_city(&self.first, self.near());
        let join = |words: &[Word]| words.iter().map(|word| word.text.as_str()).collect::<String>();
        let telling =
            self.names.iter().flatten().any(|word| word.is_telling() && word.text.chars().count() > 1);
        telling && !name.is_empty() && join(&name) == join(words)
    }

    /// Whether it is a shop, and the place is not one of that kind.
    fn is_sister(&self, seen: &Seen) -> bool {
        let another = |words: &[Word]| {
            let shops = words.iter().filter(|word| matches!(word.meaning, Meaning::Shop(_)));
            shops.into_iter().any(|shop| self.whole.iter().all(|word| word.meaning != shop.meaning))
        };
        let silent = !seen.slug.iter().any(is_readable);
        seen.title_rest.iter().any(|part| another(part)) && (silent || another(&seen.slug))
    }

    /// Words that nothing explains may be a branch's.
    fn unless_beside(&self, words: &[&Word], address: Evidence, score: f64) -> Result<f64, Why> {
        if words.is_empty() || address >= Evidence::Street { Ok(score) } else { Err(Why::OtherBranch) }
    }

    /// Whether words are in another script than the name, so that they may be a translation.
    fn is_foreign(&self, words: &[Word]) -> bool {
        let mut telling = words.iter().filter(|word| word.is_telling() && !word.is_number());
        telling.all(|word| self.names.iter().all(|name| name[0].script != word.script))
    }

    /// How the name is found in some parts: the best of all.
    fn best_of(&self, parts: &[Vec<Word>]) -> Fit {
        let all: Vec<Word> = parts.concat();
        let rows = parts.iter().chain(std::iter::once(&all));
        let fits = rows.flat_map(|part| self.names.iter().map(|name| self.fit(name, part)));
        fits.min_by_key(|fit| (fit.missing.len(), fit.dish_differs, fit.extra.len(), fit.close))
            .unwrap_or_default()
    }

    fn fit(&self, name: &[Word], part: &[Word]) -> Fit {
        let part: Vec<Word> = part.iter().filter(|word| says_something(word)).cloned().collect();
        let cover = cover(name, &part);
        let missing: Vec<&Word> = cover.missing.iter().map(|nth| &name[*nth]).collect();
        let extra: Vec<&Word> = cover.extra.iter().map(|nth| &part[*nth]).collect();
        // What begins with a small letter among large ones is of a sentence.
        let titled = part.iter().any(|word| !word.small && word.is_telling() && word.script == Script::Latin);
        let sentence = |word: &Word| titled && word.small && !word.is_number();
        let is_dish = |words: &[&Word]| words.iter().any(|word| matches!(word.meaning, Meaning::Dish(_)));
        // Of the kind of place one may say how it sounds.
        let explained = |word: &Word| {
            let ours = |ours: &Word| alike(ours, word) == Likeness::Same;
            let sounds = |kind: &Word| !kind.is_telling() && kind.script != word.script && ours(kind);
            self.address.has(word) || self.branch.iter().any(ours) || self.whole.iter().any(sounds)
        };
        let missing_dish = is_dish(&missing);
        Fit {
            found: cover.found,
            of: name.iter().filter(|word| word.is_telling()).count(),
            close: cover.close,
            // `Falafel Ezra` is `Ezra Falafel`.
            in_order: cover.in_order || (cover.found == 1 && !self.has_noise_inside),
            dish_differs: is_dish(&missing) && is_dish(&extra),
            shares_dish: name.iter().any(|word| {
                matches!(word.meaning, Meaning::Dish(_))
                    && part.iter().any(|theirs| theirs.meaning == word.meaning)
            }),
            missing: missing.iter().copied().filter(|word| word.is_telling()).cloned().collect(),
            surrounded: surrounded(&part, &cover.extra),
            missing_dish,
            extra: extra
                .into_iter()
                .filter(|word| word.is_telling() && !explained(word) && !sentence(word))
                .cloned()
                .collect(),
        }
    }
}

/// How a name is found in a text.
#[derive(Clone, Debug, Default)]
struct Fit {
    /// Telling words that are there,
    found: usize,
    /// of so many.
    of: usize,
    /// Those that are not,
    missing: Vec<Word>,
    /// and those that are not the name's and that nothing explains.
    extra: Vec<Word>,
    close: usize,
    in_order: bool,
    dish_differs: bool,
    shares_dish: bool,
    missing_dish: bool,
    /// Whether dishes that are not the name's stand on both sides of it.
    surrounded: bool,
}

impl Fit {
    /// Whether it is the name. A slip of the pen is forgiven among other words, or at the same address.
    fn is_full(&self, address: Evidence) -> bool {
        let forgiven = self.close == 0 || (self.close == 1 && (self.of > 1 || address == Evidence::House));
        let alone = self.extra.is_empty() || address == Evidence::House;
        self.found > 0
            && self.missing.is_empty()
            && alone
            && self.in_order
            && forgiven
            && !self.dish_differs
            && !self.surrounded
    }

    /// Whether it is the name with its dish, and nothing else.
    fn is_alone(&self) -> bool {
        self.is_full(Evidence::Nothing) && !self.missing_dish
    }
}

/// What a candidate shows.
struct Seen {
    title: Vec<Vec<Word>>,
    /// The title's parts without what a page says around a name, and without the city.
    title_rest: Vec<Vec<Word>>,
    /// Another city than the path's that the title says it is in.
    title_city: Option<usize>,
    /// The path's last part, without the city and the marks of a machine.
    slug: Vec<Word>,
    /// Both with the marks and what says nothing.
    title_whole: Vec<Vec<Word>>,
    slug_whole: Vec<Word>,
    snippet: Vec<Vec<Word>>,
}

impl Seen {
    fn of(subject: &Subject<'_>, candidate: &Candidate, page: &Page) -> Self {
        let title = text::parts(&candidate.title);
        let near = subject.near();
        let stripped = |words: &[Word]| {
            if subject.has_own_city {
                words.to_vec()
            } else {
                without_page_city(&without_city(words, near), page)
            }
        };
        let (mut title_rest, mut title_whole, mut title_city) = (Vec::new(), Vec::new(), None);
        for part in &title {
            let own: Vec<Word> =
                part.iter().filter(|word| !subject.brands.contains(&word.text)).cloned().collect();
            title_city = title_city.or_else(|| place_of(&own, subject));
            let whole = stripped(&subject.without_prefixes(own));
            let rest: Vec<Word> =
                whole.iter().filter(|word| word.meaning != Meaning::Noise).cloned().collect();
            title_whole.push(whole);
            if !rest.is_empty() {
                title_rest.push(rest);
            }
        }
        let slug_whole = match &page.city {
            Some(_) => stripped(&page.slug),
            None => before_city(&page.slug, near),
        };
        let numbers = subject.whole.iter().any(Word::is_number);
        let of_machine = |word: &Word| {
            let marks = word.is_opaque() || (word.is_telling() && !word.is_number() && !is_readable(word));
            let ours = || subject.whole.iter().any(|ours| ours.text == word.text);
            subject.brands.contains(&word.text) || (marks && !ours()) || (!numbers && word.is_number())
        };
        let without_end = |word: &Word| match near.and_then(|city| city.trim_end(&word.text)) {
            Some(text) if word.is_telling() => Word { text, ..word.clone() },
            _ => word.clone(),
        };
        let slug = slug_whole.iter().filter(|word| !of_machine(word)).map(without_end).collect();
        let snippet = text::parts(&candidate.snippet);
        Self { title_rest, title_city, slug, title_whole, slug_whole, snippet, title }
    }

    /// Whether the text names a city that is known, and another.
    fn names_another(&self, city: &City) -> bool {
        let texts = self.title.iter().chain(&self.snippet);
        texts.into_iter().any(|part| {
            (0..part.len()).any(|at| city::at_start(&part[at..]).is_some_and(|(other, _)| city.is_not(other)))
        })
    }

    /// Whether the title says which place it is.
    fn title_says(&self) -> bool {
        self.title_rest.iter().flatten().any(Word::is_telling)
    }

    /// Whether all that can be read of the path is in the title.
    fn agrees(&self, found: usize) -> bool {
        let title: Vec<Word> = self.title_rest.concat();
        let cover = cover(&title, &self.slug);
        found + cover.found > 0 && cover.extra.iter().all(|nth| !is_readable(&self.slug[*nth]))
    }

    /// Whether a word is anywhere.
    fn has(&self, word: &Word) -> bool {
        let all = self.title.iter().chain(&self.snippet).flatten().chain(&self.slug);
        all.into_iter().any(|theirs| alike(word, theirs) == Likeness::Same)
    }

    /// Telling words in parts of the title that are not the name, and that nothing explains. What is written in
    /// another script may be a translation.
    fn beside(&self, subject: &Subject<'_>, title: &Fit) -> Vec<&Word> {
        if title.found == 0 {
            return Vec::new();
        }
        let other = |part: &&Vec<Word>| {
            subject.best_of(std::slice::from_ref(part)).found == 0 && !subject.is_foreign(part)
        };
        let words = self.title_rest.iter().filter(other).flatten();
        let explained = |word: &Word| {
            subject.address.has(word)
                || subject.branch.iter().any(|branch| alike(branch, word) == Likeness::Same)
        };
        words.filter(|word| word.is_telling() && !word.is_number() && !explained(word)).collect()
    }
}

impl Case {
    fn add(&mut self, score: f64, why: Why) {
        self.score += score;
        self.why.push(why);
    }
}

/// Whether dishes among the words that are not the name's stand on both sides of it.
fn surrounded(part: &[Word], extra: &[usize]) -> bool {
    let dish = |nth: &usize| matches!(part[*nth].meaning, Meaning::Dish(_));
    let dishes: Vec<usize> = extra.iter().copied().filter(dish).collect();
    let found: Vec<usize> = (0..part.len()).filter(|nth| !extra.contains(nth)).collect();
    let (Some(first), Some(last)) = (found.first(), found.last()) else { return false };
    dishes.iter().any(|nth| nth < first) && dishes.iter().any(|nth| nth > last)
}

/// Whether a word of a path can be read. Consonants alone are an abbreviation.
fn is_readable(word: &Word) -> bool {
    let vowels = word.script != Script::Latin || word.text.contains(['a', 'e', 'i', 'o', 'u', 'y']);
    word.is_telling() && !word.is_number() && word.text.chars().count() > 2 && vowels
}

/// Noise and the kind of place say nothing of a name.
fn says_something(word: &Word) -> bool {
    matches!(word.meaning, Meaning::Telling | Meaning::Dish(_))
}

fn is_same(name: &[Word], other: &[Word]) -> bool {
    let cover = cover(name, other);
    cover.missing.is_empty() && cover.extra.is_empty()
}

/// Words without a city's name.
fn without_city(words: &[Word], city: Option<&City>) -> Vec<Word> {
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
fn before_city(slug: &[Word], city: Option<&City>) -> Vec<Word> {
    let is_city = |at: &usize| match city {
        Some(city) => city.named_at_start(&slug[*at..]) > 0,
        None => city::at_start(&slug[*at..]).is_some(),
    };
    let end = (1..slug.len()).find(|at| slug[..*at].iter().any(is_readable) && is_city(at));
    slug[..end.unwrap_or(slug.len())].to_vec()
}

/// Words without the name of the city that the page's path names.
fn without_page_city(words: &[Word], page: &Page) -> Vec<Word> {
    let city = page.city.as_deref().and_then(City::of_slug);
    without_city(words, city.as_ref())
}

/// The known city that a part of a title is, or says it is in. One that is in the place's name says nothing.
fn place_of(part: &[Word], subject: &Subject<'_>) -> Option<usize> {
    let said: Vec<&Word> =
        part.iter().filter(|word| !matches!(word.meaning, Meaning::Noise | Meaning::Kind(_))).collect();
    let bare: Vec<Word> = said.into_iter().cloned().collect();
    let whole = city::at_start(&bare).filter(|(_, count)| *count == bare.len());
    let after_in = || {
        (1..part.len()).find_map(|at| {
            let led = matches!(part[at - 1].text.as_str(), "in" | "ב");
            city::at_start(&part[at..]).filter(|_| led)
        })
    };
    let (city, _) = whole.or_else(after_in)?;
    (!subject.has_city(city)).then_some(city)
}

#[cfg(test)]
mod tests;
