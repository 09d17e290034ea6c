//! The name: whether a title and a path have it, and nothing that says it is another.

use std::collections::HashSet;

use super::address::Evidence;
use super::city::without_city;
use super::likeness::{Likeness, alike, cover};
use super::seen::Seen;
use super::subject::Subject;
use super::text::{Script, Word};
use super::vocabulary::Meaning;
use super::{Case, Why};

impl Subject<'_> {
    /// A name that says nothing must be the whole title or path, at the same address. One of several dishes says a
    /// little: it may be both, in its city.
    pub(super) fn weigh_generic(&self, seen: &Seen, address: Evidence, case: &mut Case) -> Result<(), Why> {
        let (in_title, in_slug) =
            (seen.title_rest.iter().any(|part| self.is_all(part)), self.is_all(&seen.slug));
        let dishes =
            self.whole.iter().map(|word| word.meaning).filter(|meaning| matches!(meaning, Meaning::Dish(_)));
        let dishes = dishes.collect::<HashSet<_>>().len();
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

    pub(super) fn weigh_name(&self, seen: &Seen, address: Evidence, case: &mut Case) -> Result<(), Why> {
        let found = Found::of(self, seen, address);
        self.look_for_another(&found)?;
        case.score += match (found.in_title, found.in_slug) {
            (true, true) => 0.8,
            (true, false) => self.in_title_alone(&found)?,
            (false, true) => self.in_slug_alone(&found)?,
            (false, false) => found.in_both_together()?,
        };
        if found.in_title {
            case.why.insert(0, Why::NameInTitle);
        }
        if found.in_slug || !found.in_title {
            case.why.insert(0, Why::NameInPath);
        }
        if found.title.close + found.slug.close > 0 {
            case.add(-0.05, Why::SpeltDifferently);
        }
        Ok(())
    }

    /// What says that it is another place, wherever the name is.
    fn look_for_another(&self, found: &Found<'_>) -> Result<(), Why> {
        let Found { seen, title, slug, .. } = found;
        let at_the_address = found.address == Evidence::House;
        if [title, slug].into_iter().any(|fit| fit.dishes.differ && fit.found > 0) {
            return Err(Why::OtherDish);
        }
        let branch_found = self.branch.iter().all(|word| {
            let bare = Word { text: word.text.trim_start_matches(['ב', 'ל']).to_owned(), ..word.clone() };
            seen.has(word) || self.address.has(word) || self.address.has(&bare)
        });
        // Many words are no branch, but praise.
        let praise = self.branch.len() > 2 && found.in_title && found.in_slug;
        if !branch_found && !praise && !at_the_address {
            return Err(Why::OtherBranch);
        }
        if title.surrounded {
            return Err(Why::OtherName);
        }
        if !at_the_address && self.is_of_another_kind(seen) {
            return Err(Why::OtherKind);
        }
        if self.is_sister(seen) {
            return Err(Why::OtherShop);
        }
        let whole = || seen.title_rest.iter().any(|part| self.is_all(part)) && self.is_all(&seen.slug);
        let alone = || (title.is_alone() && found.beside.is_empty()) || slug.is_alone();
        if (self.has_own_city && !whole()) || (self.is_weak && !alone()) {
            return Err(Why::NameSaysNothing);
        }
        Ok(())
    }

    /// The title is the name. The path must not be another, nor that of a branch.
    fn in_title_alone(&self, found: &Found<'_>) -> Result<f64, Why> {
        let Found { seen, slug, address, beside, .. } = found;
        if !seen.slug.iter().any(is_readable) {
            return unless_more(beside, *address, 0.74);
        }
        // One word that is almost the name is another.
        if slug.close > 0 && slug.of == 1 && *address < Evidence::House {
            return Err(Why::TitleAndPathDiffer);
        }
        if slug.found > 0 || slug.dishes.shared {
            let more: Vec<&Word> = slug.extra.iter().collect();
            unless_more(&more, *address, 0.68)?;
            return unless_more(beside, *address, 0.68);
        }
        // The path says what the title says.
        if seen.agrees(slug.found) {
            return unless_more(beside, *address, 0.72);
        }
        let told = seen.snippet.iter().any(|part| self.best_of(std::slice::from_ref(part)).found > 0);
        let unreadable = self.names.iter().any(|name| name[0].script == Script::Other);
        let translated = (told || unreadable) && self.is_foreign(&seen.slug);
        if *address >= Evidence::Street || translated { Ok(0.62) } else { Err(Why::TitleAndPathDiffer) }
    }

    /// The path is the name. The title must say nothing, less, or the same in another script.
    fn in_slug_alone(&self, found: &Found<'_>) -> Result<f64, Why> {
        let Found { seen, title, beside, .. } = found;
        let less = title.found > 0 && title.extra.is_empty() && beside.is_empty();
        if !seen.title_says() || less {
            return Ok(0.7);
        }
        if title.found == 0 && seen.title_rest.iter().all(|part| self.is_foreign(part)) {
            return Ok(0.64);
        }
        Err(match title {
            Fit { found: 0, .. } => Why::TitleAndPathDiffer,
            Fit { missing, .. } if missing.is_empty() => Why::OtherBranch,
            _ => Why::OtherName,
        })
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

    /// Whether words are in another script than the name, so that they may be a translation.
    pub(super) fn is_foreign(&self, words: &[Word]) -> bool {
        let mut telling = words.iter().filter(|word| word.is_telling() && !word.is_number());
        telling.all(|word| self.names.iter().all(|name| name[0].script != word.script))
    }

    /// How the name is found in some parts: the best of all.
    pub(super) fn best_of(&self, parts: &[Vec<Word>]) -> Fit {
        let all: Vec<Word> = parts.concat();
        let rows = parts.iter().chain(std::iter::once(&all));
        // What is written in one of the name's scripts is held against that form of it alone.
        let meant = |name: &[Word], part: &[Word]| {
            let script = |words: &[Word]| words.iter().find(|word| word.is_telling()).map(|word| word.script);
            let theirs = script(part);
            script(name) == theirs || self.names.iter().all(|name| script(name) != theirs)
        };
        let fits = rows.flat_map(|part| {
            let names = self.names.iter().filter(move |name| meant(name, part));
            names.map(move |name| self.fit(name, part))
        });
        fits.min_by_key(|fit| (fit.missing.len(), fit.dishes.differ, fit.extra.len(), fit.close))
            .unwrap_or_default()
    }

    pub(super) fn fit(&self, name: &[Word], part: &[Word]) -> Fit {
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
        let shared = name.iter().any(|word| {
            matches!(word.meaning, Meaning::Dish(_))
                && part.iter().any(|theirs| theirs.meaning == word.meaning)
        });
        let first = name.iter().position(Word::is_telling);
        Fit {
            first_missing: first.is_some_and(|first| cover.missing.contains(&first)),
            found: cover.found,
            of: name.iter().filter(|word| word.is_telling()).count(),
            close: cover.close,
            // `Falafel Ezra` is `Ezra Falafel`.
            in_order: cover.in_order || (cover.found == 1 && !self.has_noise_inside()),
            dishes: Dishes { differ: missing_dish && is_dish(&extra), shared, missing: missing_dish },
            missing: missing.iter().copied().filter(|word| word.is_telling()).cloned().collect(),
            surrounded: surrounded(&part, &cover.extra),
            extra: extra
                .into_iter()
                .filter(|word| {
                    (word.is_telling() || (self.is_faint && is_dish(&[word])))
                        && !explained(word)
                        && !sentence(word)
                })
                .cloned()
                .collect(),
        }
    }
}

/// How a name is found in what a candidate shows.
struct Found<'a> {
    seen: &'a Seen,
    address: Evidence,
    title: Fit,
    slug: Fit,
    in_title: bool,
    in_slug: bool,
    /// What the title has besides the name, in its other parts.
    beside: Vec<&'a Word>,
}

impl<'a> Found<'a> {
    fn of(subject: &Subject<'_>, seen: &'a Seen, address: Evidence) -> Self {
        let title = subject.best_of(&seen.title_rest);
        let slug = subject.best_of(std::slice::from_ref(&seen.slug));
        let written = seen.title_whole.iter().any(|part| subject.is_written(part));
        Self {
            in_title: title.is_full(address) || written,
            in_slug: slug.is_full(address) || subject.is_written(&seen.slug_whole),
            beside: seen.beside(subject, &title),
            seen,
            address,
            title,
            slug,
        }
    }

    /// Neither is the name, but what is missing in one is in the other. At the same address less of it will do.
    fn in_both_together(&self) -> Result<f64, Why> {
        let Self { seen, title, slug, beside, .. } = self;
        let begun = title.found > 0 && !title.first_missing;
        if self.address == Evidence::House && begun && title.extra.is_empty() && title.close == 0 {
            return Ok(0.6);
        }
        let there = |word: &Word| seen.slug.iter().any(|theirs| alike(word, theirs) == Likeness::Same);
        let both = title.found > 0 && slug.found > 0 && title.missing.iter().all(there);
        let nothing_else = title.extra.is_empty() && slug.extra.is_empty() && beside.is_empty();
        let well = title.in_order && slug.in_order && title.close + slug.close == 0;
        if both && nothing_else && well {
            Ok(0.64)
        } else if title.missing.is_empty() && title.found > 0 {
            Err(Why::OtherBranch)
        } else {
            Err(Why::OtherName)
        }
    }
}

/// Words that nothing explains may be a branch's.
fn unless_more(words: &[&Word], address: Evidence, score: f64) -> Result<f64, Why> {
    if words.is_empty() || address >= Evidence::Street { Ok(score) } else { Err(Why::OtherBranch) }
}

/// What the dishes of a name and of a text say.
#[derive(Clone, Copy, Debug, Default)]
struct Dishes {
    /// Each has one that the other has not.
    differ: bool,
    /// Both have one.
    shared: bool,
    /// The name has one that the text has not.
    missing: bool,
}

/// How a name is found in a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Fit {
    /// Telling words that are there,
    pub(super) found: usize,
    /// of so many.
    pub(super) of: usize,
    /// Whether the first of them is not.
    first_missing: bool,
    /// Those that are not,
    pub(super) missing: Vec<Word>,
    /// and those that are not the name's and that nothing explains.
    pub(super) extra: Vec<Word>,
    pub(super) close: usize,
    pub(super) in_order: bool,
    dishes: Dishes,
    /// Whether dishes that are not the name's stand on both sides of it.
    pub(super) surrounded: bool,
}

impl Fit {
    /// Whether it is the name. A slip of the pen is forgiven among other words, or at the same address.
    pub(super) fn is_full(&self, address: Evidence) -> bool {
        let forgiven = self.close == 0 || (self.close == 1 && (self.of > 1 || address == Evidence::House));
        let alone = self.extra.is_empty() || address == Evidence::House;
        self.found > 0
            && self.missing.is_empty()
            && alone
            && self.in_order
            && forgiven
            && !self.dishes.differ
            && !self.surrounded
    }

    /// Whether it is the name with its dish, and nothing else.
    pub(super) fn is_alone(&self) -> bool {
        self.is_full(Evidence::Nothing) && !self.dishes.missing
    }
}

/// Whether dishes among the words that are not the name's stand on both sides of it.
pub(super) fn surrounded(part: &[Word], extra: &[usize]) -> bool {
    let dish = |nth: &usize| matches!(part[*nth].meaning, Meaning::Dish(_));
    let dishes: Vec<usize> = extra.iter().copied().filter(dish).collect();
    let found: Vec<usize> = (0..part.len()).filter(|nth| !extra.contains(nth)).collect();
    let (Some(first), Some(last)) = (found.first(), found.last()) else { return false };
    dishes.iter().any(|nth| nth < first) && dishes.iter().any(|nth| nth > last)
}

/// Whether a word of a path can be read. Consonants alone are an abbreviation.
pub(super) fn is_readable(word: &Word) -> bool {
    let vowels = word.script != Script::Latin || word.text.contains(['a', 'e', 'i', 'o', 'u', 'y']);
    word.is_telling() && !word.is_number() && word.text.chars().count() > 2 && vowels
}

/// Noise and the kind of place say nothing of a name.
pub(super) fn says_something(word: &Word) -> bool {
    matches!(word.meaning, Meaning::Telling | Meaning::Dish(_))
}

pub(super) fn is_same(name: &[Word], other: &[Word]) -> bool {
    let cover = cover(name, other);
    cover.missing.is_empty() && cover.extra.is_empty()
}
