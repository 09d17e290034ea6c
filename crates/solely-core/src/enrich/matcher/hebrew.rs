//! Hebrew read aloud: whether a Latin word is how a Hebrew one may be written.
//!
//! Hebrew writes consonants, and vowels only here and there; several letters sound alike, and one may
//! sound in several ways. So nothing is translated: both words are walked side by side, each Hebrew letter
//! may be any of its spellings, Latin vowels may stand between, and what does not fit has a cost.

/// What a letter may be in Latin, and what that costs in hundredths.
type Spellings = &'static [(&'static str, u32)];

/// One word may be longer than the other by this many letters that fit nothing.
const MISFIT: u32 = 100;
const FAR: u32 = u32::MAX / 2;

/// How badly a Latin word fits a Hebrew one, in hundredths of a letter; both folded.
pub(super) fn misfit(hebrew: &str, latin: &str) -> u32 {
    let (units, latin) = (units(hebrew), without_doubles(latin));
    if latin.len() > LATIN_MAX {
        return FAR;
    }
    // Row by row: what it costs to have read the units so far as the first letters.
    let mut costs = [FAR; LATIN_MAX + 1];
    costs[0] = 0;
    // `And` and `the` are written at the word.
    if [b"ve", b"va", b"ha"].iter().any(|prefix| latin.starts_with(*prefix)) {
        costs[2] = 15;
    }
    skip_vowels(&latin, &mut costs);
    for (nth, unit) in units.iter().enumerate() {
        let mut next = costs.map(|cost| cost.saturating_add(MISFIT));
        for (spelling, extra) in unit.spellings(nth == 0, nth + 1 == units.len()) {
            let spelling = spelling.as_bytes();
            for (from, cost) in costs.iter().enumerate().take(latin.len() + 1) {
                let to = from + spelling.len();
                if *cost < FAR && latin.get(from..to) == Some(spelling) {
                    next[to] = next[to].min(cost.saturating_add(*extra));
                }
            }
        }
        skip_vowels(&latin, &mut next);
        costs = next;
    }
    costs[latin.len()]
}

/// Longer words are not read.
const LATIN_MAX: usize = 48;

/// Short names that are written without the vowel that they are read with.
const KNOWN: &[(&str, &str)] = &[
    ("משה", "moshe"),
    ("כהנ", "cohen"),
    ("כהנ", "kohen"),
    ("שלמה", "shlomo"),
    ("נח", "noah"),
    ("נח", "noach"),
    ("יינ", "yayin"),
    ("דוד", "david"),
];

/// Whether it fits: the shorter the word, the better it must.
pub(super) fn reads_as(hebrew: &str, latin: &str) -> bool {
    let letters = hebrew.chars().filter(|c| super::text::is_hebrew(*c)).count();
    let allowed = match letters {
        0..=1 => return false,
        2..=3 => 15,
        4 => 30,
        5 => 35,
        _ => 60,
    };
    let known = KNOWN.iter().any(|(written, read)| *written == hebrew && *read == latin);
    known || (latin.len() <= 4 * letters && misfit(hebrew, latin) <= allowed)
}

/// Latin letters that Hebrew need not write. The end of a word is written.
fn skip_vowels(latin: &[u8], costs: &mut [u32]) {
    for (at, letter) in latin.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| latin[before]);
        let at_end = at + 1 == latin.len();
        let cost = match letter {
            b'a' | b'o' | b'u' if at_end => 70,
            b'a' | b'e' => 0,
            b'i' | b'y' if at_end => 60,
            b'o' | b'u' | b'i' => 30,
            b'h' if at_end || before.is_some_and(|before| b"ktg".contains(&before)) => 20,
            _ => MISFIT,
        };
        costs[at + 1] = costs[at + 1].min(costs[at].saturating_add(cost));
    }
}

#[derive(Clone, Copy)]
struct Unit {
    letter: char,
    /// A geresh behind it, or for `ו` and `י` the same letter again.
    changed: bool,
}

fn units(hebrew: &str) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for c in hebrew.chars() {
        match units.last_mut() {
            Some(last) if c == '\'' => last.changed = true,
            Some(last) if c == last.letter && matches!(c, 'ו' | 'י') && !last.changed => {
                last.changed = true;
            }
            _ if c == '\'' => {}
            _ => units.push(Unit { letter: c, changed: false }),
        }
    }
    units
}

impl Unit {
    fn spellings(self, first: bool, last: bool) -> Spellings {
        const VOWEL: Spellings = &[("", 0), ("a", 0), ("e", 0), ("o", 0), ("i", 0), ("u", 0)];
        match (self.letter, self.changed) {
            ('א' | 'ע', _) => VOWEL,
            ('ב', _) => &[("b", 0), ("v", 0), ("w", 20)],
            ('ג', true) => &[("j", 0), ("g", 0), ("dj", 0), ("dg", 0)],
            ('ג', false) => &[("g", 0), ("gh", 0), ("j", 30)],
            ('ד', _) => &[("d", 0), ("th", 20)],
            ('ה', _) if last && !first => &[("a", 0), ("e", 0), ("ah", 0), ("eh", 0), ("h", 0), ("", 60)],
            // An article, and `and`.
            ('ה', _) if first => &[("h", 0), ("", 15)],
            ('ה', _) => &[("h", 0), ("", 30)],
            ('ו', true) => &[("v", 0), ("w", 0), ("wh", 0), ("o", 30), ("u", 20), ("oo", 20)],
            ('ו', false) if first => {
                &[("v", 0), ("w", 0), ("wh", 0), ("o", 0), ("u", 0), ("ve", 0), ("va", 0), ("", 15)]
            }
            ('ו', false) => &[
                ("o", 0),
                ("u", 0),
                ("v", 0),
                ("w", 0),
                ("oo", 0),
                ("ou", 0),
                ("au", 0),
                ("oe", 0),
                ("ow", 0),
                ("wh", 0),
                ("", 80),
            ],
            ('ז', true) => &[("zh", 0), ("j", 0), ("g", 0), ("ge", 0)],
            ('ז', false) => &[("z", 0), ("s", 20)],
            ('ח', _) => &[("h", 0), ("ch", 0), ("kh", 0), ("j", 30)],
            ('ט' | 'ת', _) => &[("t", 0), ("th", 0)],
            ('י', true) => &[
                ("y", 0),
                ("ai", 0),
                ("ay", 0),
                ("ei", 0),
                ("i", 0),
                ("ey", 0),
                ("ye", 0),
                ("yi", 0),
                ("a", 10),
                ("igh", 0),
                ("ea", 0),
                ("ee", 0),
            ],
            ('י', false) => &[
                ("i", 0),
                ("y", 0),
                ("ee", 0),
                ("e", 20),
                ("ie", 0),
                ("ei", 0),
                ("ea", 0),
                ("ey", 0),
                ("ay", 0),
                ("ai", 0),
                ("yi", 0),
                ("j", 20),
                ("", 40),
            ],
            ('כ', _) => &[("k", 0), ("c", 0), ("ch", 0), ("kh", 0), ("ck", 0), ("q", 20), ("h", 30)],
            ('ל', _) => &[("l", 0)],
            ('מ', _) => &[("m", 0)],
            ('נ', _) => &[("n", 0)],
            ('ס', _) => &[("s", 0), ("c", 0), ("z", 30), ("sc", 0)],
            ('פ', _) => &[("p", 0), ("f", 0), ("ph", 0)],
            ('צ', true) => &[("ch", 0), ("tch", 0), ("c", 5), ("cz", 0), ("cs", 0)],
            ('צ', false) => &[("ts", 0), ("tz", 0), ("z", 0), ("c", 20), ("s", 40)],
            ('ק', _) => &[("k", 0), ("c", 0), ("q", 0), ("ck", 0), ("ch", 15)],
            ('ר', _) => &[("r", 0)],
            ('ש', _) => &[("sh", 0), ("s", 0), ("sch", 0), ("ch", 30)],
            _ => &[],
        }
    }
}

/// Doubled letters sound as one, and `x` as two.
fn without_doubles(latin: &str) -> Vec<u8> {
    let mut letters: Vec<u8> = Vec::with_capacity(latin.len());
    for letter in latin.replace('x', "ks").bytes() {
        let vowel = matches!(letter, b'e' | b'o');
        if letters.last() != Some(&letter) || vowel {
            letters.push(letter);
        }
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrich::matcher::text::folded;

    fn reads(hebrew: &str, latin: &str) -> bool {
        reads_as(&folded(hebrew), latin)
    }

    #[test]
    fn a_word_is_read_in_all_its_spellings() {
        for (hebrew, latin) in [
            ("פיצה", "pizza"),
            ("ג'ירף", "giraffe"),
            ("ג'ו", "joe"),
            ("בנדיקט", "benedict"),
            ("הזקן", "hazaken"),
            ("ויטרינה", "vitrina"),
            ("מזנון", "miznon"),
            ("הרצליה", "herzliya"),
            ("גבעתיים", "givatayim"),
            ("ירושלים", "yerushalayim"),
            ("רחובות", "rehovot"),
            ("רעננה", "raanana"),
            ("נתניה", "netanya"),
            ("אבו", "abu"),
            ("חסן", "hassan"),
            ("צ'רצ'יל", "churchill"),
            ("מוזס", "moses"),
            ("לנדוור", "landwer"),
            ("גוצ'ה", "goocha"),
            ("האוס", "house"),
            ("קינג", "king"),
            ("שמש", "shemesh"),
            ("סטריט", "street"),
            ("גרדן", "garden"),
            ("בייגל", "bagel"),
            ("כהן", "cohen"),
            ("נייט", "night"),
            ("מקסים", "maxim"),
            ("אייל", "eyal"),
            ("צפון", "tzafon"),
            ("יצחק", "yitzhak"),
        ] {
            assert!(reads(hebrew, latin), "{hebrew} is {latin}: {}", misfit(&folded(hebrew), latin));
        }
    }

    #[test]
    fn a_word_that_only_sounds_alike_is_another() {
        for (hebrew, latin) in [
            ("מריו", "maria"),
            ("משה", "moses"),
            ("מוזס", "moshe"),
            ("טוטו", "tito"),
            ("כרמל", "caramella"),
            ("ברגר", "burgerim"),
            ("דוד", "david's"),
            ("חיפה", "yafo"),
            ("שמש", "shimshon"),
            ("לב", "liva"),
            ("גיל", "gal"),
            ("מירה", "meir"),
            ("שוקו", "shuk"),
            ("דן", "dino"),
        ] {
            assert!(!reads(hebrew, latin), "{hebrew} is not {latin}: {}", misfit(&folded(hebrew), latin));
        }
    }
}
