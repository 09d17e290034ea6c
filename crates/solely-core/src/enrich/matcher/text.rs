//! Text as it is compared: folded, cut into parts and words, each word known for what it says.
//!
//! Folding takes width, case, accents and points away, gives Hebrew letters at the end of a word their
//! plain form, and writes every other script in Latin letters. Hebrew stays: it has no vowels to be
//! written, and is read by [`super::hebrew`]. Only the beginning of a text is looked at, so that what is
//! done with its words has a bound.

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

use super::vocabulary::{self, Meaning};

/// Characters of a text that are looked at.
pub(super) const CHARS_MAX: usize = 600;
/// Words of a text,
const WORDS_MAX: usize = 48;
/// of a name,
pub(super) const NAME_WORDS_MAX: usize = 16;
/// and letters of a word.
const LETTERS_MAX: usize = 24;

/// What a word was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Latin,
    Hebrew,
    /// Whatever else, which Latin letters render badly.
    Other,
}

/// A word as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) script: Script,
    pub(super) meaning: Meaning,
    /// Whether it begins with a small letter, of which the script has large ones too.
    pub(super) small: bool,
}

impl Word {
    fn new(text: String, other: bool) -> Self {
        let text = vocabulary::synonym(&text).map_or(text, str::to_owned);
        let meaning = vocabulary::meaning(&text);
        let script = match text.chars().next() {
            Some(first) if is_hebrew(first) => Script::Hebrew,
            _ if other => Script::Other,
            _ => Script::Latin,
        };
        Self { script, meaning, text, small: false }
    }

    /// Whether it says which place it is, and not only what.
    pub(super) fn is_telling(&self) -> bool {
        self.meaning == Meaning::Telling
    }

    pub(super) fn is_number(&self) -> bool {
        self.text.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// Letters and digits mixed, or one letter: the mark of a machine.
    pub(super) fn is_opaque(&self) -> bool {
        let digits = self.text.bytes().filter(u8::is_ascii_digit).count();
        self.script == Script::Latin && digits > 0 && digits < self.text.len()
    }
}

/// The parts of a text, as `|`, a dash between spaces, brackets and the like divide it, each in words. Where
/// the script changes a part ends, if both sides say something.
pub(super) fn parts(text: &str) -> Vec<Vec<Word>> {
    let mut parts = Vec::new();
    for part in cut(text) {
        parts.extend(by_script(part));
    }
    parts
}

/// The parts of a name, as far as it is looked at.
pub(super) fn name_parts(name: &str) -> Vec<Vec<Word>> {
    // Nobody cut a name off: its dots are its own.
    let name = head(name).replace('…', " ").replace("...", " ");
    let (mut parts, mut left) = (parts(&name), NAME_WORDS_MAX);
    for part in &mut parts {
        part.truncate(left);
        left -= part.len();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The beginning of a text, as much as is looked at.
pub(super) fn head(text: &str) -> &str {
    text.char_indices().nth(CHARS_MAX).map_or(text, |(end, _)| &text[..end])
}

/// All words of a text.
pub(super) fn words(text: &str) -> Vec<Word> {
    cut(text).into_iter().flatten().collect()
}

/// One word, folded.
pub(super) fn folded(word: &str) -> String {
    let mut cutter = Cutter::default();
    let (mut before, mut letters) = (None, word.nfkd().filter(|c| !is_combining_mark(*c)).peekable());
    while let Some(c) = letters.next() {
        if is_apostrophe(c) {
            cutter.apostrophe(before, letters.peek().copied());
        } else {
            cutter.letter(c);
        }
        before = Some(c);
    }
    cutter.word
}

/// The words of a part of a link's path.
pub(super) fn slug(segment: &str) -> Vec<Word> {
    let decoded = percent_encoding::percent_decode_str(segment).decode_utf8_lossy();
    words(&decoded.replace(['-', '_', '.', '+'], " "))
}

/// A part in one script, or several.
fn by_script(part: Vec<Word>) -> Vec<Vec<Word>> {
    let mut runs: Vec<Vec<Word>> = Vec::new();
    for word in part {
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(|last| last.script == word.script || word.is_number()) => {
                run.push(word);
            }
            _ => runs.push(vec![word]),
        }
    }
    if runs.iter().all(|run| run.iter().any(Word::is_telling)) {
        runs
    } else {
        vec![runs.into_iter().flatten().collect()]
    }
}

fn cut(text: &str) -> Vec<Vec<Word>> {
    let folded: Vec<char> = text.chars().take(CHARS_MAX).nfkd().take(2 * CHARS_MAX).collect();
    let folded: Vec<char> = folded.into_iter().filter(|c| !is_combining_mark(*c)).collect();
    let mut cutter = Cutter::default();
    let mut at = 0;
    while let Some(&c) = folded.get(at) {
        let before = at.checked_sub(1).and_then(|before| folded.get(before)).copied();
        let after = folded.get(at + 1).copied();
        if c.is_alphanumeric() {
            cutter.letter(c);
        } else if is_apostrophe(c) {
            cutter.apostrophe(before, after);
        } else if is_quote(c) && before.is_some_and(is_hebrew) && after.is_some_and(is_hebrew) {
            // An abbreviation: the word goes on.
        } else if matches!(c, ':' | '.' | '/') && is_digit(before) && is_digit(after) {
            // A time, a mark, or 24/7, and no number of a house.
            cutter.word.push('x');
        } else if c == ':' && !is_space(after) {
            cutter.end_word();
        } else if c == '.' && after == Some('.') && folded.get(at + 2) == Some(&'.') {
            cutter.was_cut_off();
            at += 2;
        } else if c == '.' && is_initial(&folded, at) {
            // K.F.C. is one word.
        } else if c == '.'
            && (after.is_none() || is_space(after))
            && !cutter.is_abbreviated()
            && folded.get(at.wrapping_sub(2)) != Some(&'.')
        {
            cutter.end_part();
        } else if matches!(c, '&' | '+') {
            cutter.end_word();
            cutter.word.push_str("and");
            cutter.end_word();
        } else if is_divider(c) || (is_dash(c) && (is_space(before) || is_space(after))) {
            cutter.end_part();
        } else {
            cutter.end_word();
        }
        at += 1;
    }
    cutter.end_part();
    cutter.parts
}

#[derive(Default)]
struct Cutter {
    parts: Vec<Vec<Word>>,
    part: Vec<Word>,
    word: String,
    letters: usize,
    /// Whether the word is in neither Latin nor Hebrew.
    other: bool,
    small: bool,
    words: usize,
}

impl Cutter {
    fn letter(&mut self, c: char) {
        let other_script = self.word.chars().next().is_some_and(|first| {
            is_hebrew(first) != is_hebrew(c) && !c.is_ascii_digit() && !first.is_ascii_digit()
        });
        if other_script {
            self.end_word();
        }
        if self.letters == 0 {
            self.small = c.is_lowercase();
        }
        self.letters += 1;
        if self.letters > LETTERS_MAX {
            return;
        }
        if is_hebrew(c) {
            self.word.push(plain_form(c));
        } else if c.is_ascii() {
            self.word.push(c.to_ascii_lowercase());
        } else {
            // What is Latin but for its marks has lost them.
            self.other |= !is_latin(c);
            let latin = greek(c, &self.word).or_else(|| deunicode::deunicode_char(c)).unwrap_or_default();
            let kept = latin.chars().filter(char::is_ascii_alphanumeric);
            self.word.extend(kept.map(|c| c.to_ascii_lowercase()));
        }
    }

    /// In Hebrew it changes the sound of some letters; elsewhere it is left out.
    fn apostrophe(&mut self, before: Option<char>, after: Option<char>) {
        let changes = before.is_some_and(|c| "גזצץתח".contains(c)) && self.word.chars().any(is_hebrew);
        let inside = before.is_some_and(char::is_alphanumeric) && after.is_some_and(char::is_alphanumeric);
        if changes {
            self.word.push('\'');
        } else if !inside {
            self.end_word();
        }
    }

    /// A full stop behind such a word does not end a sentence.
    fn is_abbreviated(&self) -> bool {
        matches!(
            self.word.as_str(),
            "st" | "str" | "ave" | "blvd" | "rd" | "dr" | "sq" | "no" | "ul" | "רח" | "שד"
        ) || self.word.chars().count() == 1
    }

    /// What is left of a word that an ellipsis ends says nothing.
    fn was_cut_off(&mut self) {
        self.word.clear();
        self.letters = 0;
        self.end_part();
    }

    fn end_word(&mut self) {
        self.letters = 0;
        let (text, other) = (std::mem::take(&mut self.word), std::mem::take(&mut self.other));
        if text.is_empty() || self.words == WORDS_MAX {
            return;
        }
        // `joe-s` is Joe's.
        if let Some(last) = self
            .part
            .last_mut()
            .filter(|last| text == "s" && last.script == Script::Latin && last.is_telling())
        {
            *last = Word::new(format!("{}s", last.text), false);
            return;
        }
        if let Some(last) = self.part.last_mut()
            && let Some(joined) = vocabulary::joined(&last.text, &text)
        {
            *last = Word::new(joined.to_owned(), false);
            return;
        }
        self.words += 1;
        self.part.push(Word { small: self.small, ..Word::new(text, other) });
    }

    fn end_part(&mut self) {
        self.end_word();
        if !self.part.is_empty() {
            self.parts.push(std::mem::take(&mut self.part));
        }
    }
}

pub(super) fn is_hebrew(c: char) -> bool {
    ('א'..='ת').contains(&c)
}

/// Latin letters beyond ASCII that no folding takes apart, such as ø and ł.
fn is_latin(c: char) -> bool {
    c < '\u{2b0}' || ('\u{1e00}'..'\u{1f00}').contains(&c)
}

/// Greek letters as they sound today, where that is not what they look like; and one of Azerbaijan.
fn greek(c: char, before: &str) -> Option<&'static str> {
    Some(match c {
        'υ' | 'Υ' if before.ends_with('o') => "u",
        'υ' | 'Υ' if before.ends_with(['a', 'e']) => "v",
        'υ' | 'Υ' | 'η' | 'Η' => "i",
        'β' | 'Β' => "v",
        'φ' | 'Φ' => "f",
        'χ' | 'Χ' => "ch",
        'ω' | 'Ω' => "o",
        'ə' | 'Ə' => "e",
        _ => return None,
    })
}

/// Five letters have another form at the end of a word.
fn plain_form(c: char) -> char {
    match c {
        'ך' => 'כ',
        'ם' => 'מ',
        'ן' => 'נ',
        'ף' => 'פ',
        'ץ' => 'צ',
        other => other,
    }
}

fn is_apostrophe(c: char) -> bool {
    matches!(c, '\'' | '’' | '‘' | '`' | '´' | '׳' | 'ʼ' | '′')
}

fn is_quote(c: char) -> bool {
    matches!(c, '"' | '״' | '”' | '“' | '″')
}

fn is_dash(c: char) -> bool {
    matches!(c, '-' | '\u{2010}' | '\u{2011}' | '\u{2012}' | '־')
}

fn is_divider(c: char) -> bool {
    matches!(
        c,
        '|' | '•'
            | '·'
            | '–'
            | '—'
            | '―'
            | '('
            | ')'
            | '['
            | ']'
            | '/'
            | ':'
            | ';'
            | ','
            | '»'
            | '«'
            | '›'
            | '>'
            | '<'
            | '\n'
    )
}

fn is_digit(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_digit())
}

fn is_space(c: Option<char>) -> bool {
    c.is_some_and(char::is_whitespace)
}

/// Whether a full stop is one of those between single letters.
fn is_initial(text: &[char], stop: usize) -> bool {
    let letter = |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(|c| c.is_alphanumeric());
    letter(stop.checked_sub(1))
        && !letter(stop.checked_sub(2))
        && letter(Some(stop + 1))
        && !letter(Some(stop + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<Vec<String>> {
        let parts = parts(text);
        parts.into_iter().map(|part| part.into_iter().map(|word| word.text).collect()).collect()
    }

    #[test]
    fn width_case_accents_and_points_are_folded() {
        assert_eq!(told("ＣＡＦÉ Müller's"), [["cafe", "mullers"]]);
        assert_eq!(told("K.F.C. & Søn"), [["kfc", "and", "son"]]);
        assert_eq!(told("בע\"מ שלום"), [["בעמ", "שלומ"]]);
        assert_eq!(told("ג׳ירף"), [["ג'ירפ"]]);
        assert_eq!(told("Σουβλάκι"), [["souvlaki"]]);
        assert_eq!(told("მაჭახელა"), [["machaxela"]]);
    }

    #[test]
    fn parts_are_cut_where_a_reader_would() {
        assert_eq!(
            told("A | B – C (D) x-y - Z"),
            [vec!["a"], vec!["b"], vec!["c"], vec!["d"], vec!["x", "y"], vec!["z"]]
        );
        assert_eq!(told("Giraffe ג'ירף"), [["giraffe"], ["ג'ירפ"]]);
        assert_eq!(told("Pizza Hou… | Wolt"), [["pizza"], ["wolt"]]);
    }

    #[test]
    fn nothing_is_too_long() {
        let long = "ab ".repeat(1_000_000);
        assert!(words(&long).len() <= WORDS_MAX);
        assert!(words(&"x".repeat(1_000_000))[0].text.len() <= LETTERS_MAX);
    }
}
