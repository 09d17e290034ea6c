//! What a candidate shows, with what a page says around a name taken away.

use super::Candidate;
use super::city::{self, City, before_city, without_city, without_page_city};
use super::likeness::{Likeness, alike, cover};
use super::link::Page;
use super::name::{Fit, is_readable};
use super::subject::Subject;
use super::text::{self, Word};
use super::vocabulary::Meaning;

/// What a candidate shows.
pub(super) struct Seen {
    pub(super) title: Vec<Vec<Word>>,
    /// The title's parts without what a page says around a name, and without the city.
    pub(super) title_rest: Vec<Vec<Word>>,
    /// Another city than the path's that the title says it is in.
    pub(super) title_city: Option<usize>,
    /// The path's last part, without the city and the marks of a machine.
    pub(super) slug: Vec<Word>,
    /// Both with the marks and what says nothing.
    pub(super) title_whole: Vec<Vec<Word>>,
    pub(super) slug_whole: Vec<Word>,
    pub(super) snippet: Vec<Vec<Word>>,
}

impl Seen {
    pub(super) fn of(subject: &Subject<'_>, candidate: &Candidate, page: &Page) -> Self {
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
        Self { title, title_rest, title_city, slug, title_whole, slug_whole, snippet }
    }

    /// Whether the text names a city that is known, and another. An area may be named after one.
    pub(super) fn names_another(&self, city: &City) -> bool {
        let texts = self.title.iter().chain(&self.snippet).filter(|part| !city::is_area(part));
        texts.into_iter().any(|part| {
            (0..part.len()).any(|at| city::at_start(&part[at..]).is_some_and(|(other, _)| city.is_not(other)))
        })
    }

    /// Whether the title says which place it is.
    pub(super) fn title_says(&self) -> bool {
        self.title_rest.iter().flatten().any(Word::is_telling)
    }

    /// Whether all that can be read of the path is in the title.
    pub(super) fn agrees(&self, found: usize) -> bool {
        let title: Vec<Word> = self.title_rest.concat();
        let cover = cover(&title, &self.slug);
        found + cover.found > 0 && cover.extra.iter().all(|nth| !is_readable(&self.slug[*nth]))
    }

    /// Whether a word is anywhere.
    pub(super) fn has(&self, word: &Word) -> bool {
        let all = self.title.iter().chain(&self.snippet).flatten().chain(&self.slug);
        all.into_iter().any(|theirs| alike(word, theirs) == Likeness::Same)
    }

    /// Telling words in parts of the title that are not the name, and that nothing explains. What is written in
    /// another script may be a translation.
    pub(super) fn beside(&self, subject: &Subject<'_>, title: &Fit) -> Vec<&Word> {
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
