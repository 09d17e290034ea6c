//! Whether words, and rows of words, are the same.

use super::hebrew;
use super::text::{Script, Word};
use super::vocabulary::Meaning;

/// How alike two words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Likeness {
    Different,
    /// A slip of the pen away.
    Close,
    Same,
}

pub(super) fn alike(one: &Word, other: &Word) -> Likeness {
    if one.text == other.text || (one.meaning == other.meaning && !one.is_telling()) {
        return Likeness::Same;
    }
    // What is known for something else is not a slip of the pen, but may be how it sounds elsewhere.
    if one.meaning != other.meaning && one.script == other.script {
        return Likeness::Different;
    }
    texts_alike(&one.text, one.script, &other.text, other.script)
}

fn texts_alike(one: &str, one_script: Script, other: &str, other_script: Script) -> Likeness {
    use Script::{Hebrew, Latin, Other};
    if one == other {
        return Likeness::Same;
    }
    match (one_script, other_script) {
        (Latin, Latin) | (Other, Other) => latin_alike(one, other),
        (Hebrew, Hebrew) => hebrew_alike(one, other),
        (Hebrew, Latin) => same_if(hebrew::reads_as(one, other)),
        (Latin, Hebrew) => same_if(hebrew::reads_as(other, one)),
        (Latin, Other) | (Other, Latin) => same_if(renders(one, other)),
        (Hebrew, Other) | (Other, Hebrew) => Likeness::Different,
    }
}

/// Whether one is how another script was rendered, give or take a letter.
fn renders(one: &str, other: &str) -> bool {
    let plain = |text: &str| {
        sound(text)
            .replace("zh", "z")
            .replace("sh", "s")
            .replace("ch", "h")
            .replace('b', "v")
            .replace('j', "i")
            .replace('x', "h")
    };
    let (one, other) = (plain(one), plain(other));
    let length = one.len().min(other.len());
    one == other || (length > 4 && strsim::osa_distance(&one, &other) <= length / 5)
}

fn same_if(same: bool) -> Likeness {
    if same { Likeness::Same } else { Likeness::Different }
}

fn latin_alike(one: &str, other: &str) -> Likeness {
    let digits = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    if digits(one) || digits(other) {
        return Likeness::Different;
    }
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    // McDonald, McDonalds.
    if short.len() >= 6 && long.strip_suffix('s') == Some(short) {
        return Likeness::Same;
    }
    if short.len() < 3 || long.len() - short.len() > SOUND_SHORTENS {
        return Likeness::Different;
    }
    if undoubled(short) == undoubled(long) {
        return Likeness::Same;
    }
    let (written, short, long) = (short.len(), sound(short), sound(long));
    if short == long && written > 3 {
        return if written > 5 { Likeness::Same } else { Likeness::Close };
    }
    let hard = |text: &str| text.replace("ch", "h");
    if written > 6 && hard(&short) == hard(&long) {
        return Likeness::Same;
    }
    // A letter too many or too few, or two that changed places. Another letter is another name, unless it is
    // a long one.
    let length = short.len().min(long.len());
    if short.len().max(long.len()) - length > 1 {
        return Likeness::Different;
    }
    let edits = strsim::osa_distance(&short, &long);
    let substituted = short.len() == long.len() && strsim::hamming(&short, &long) == Ok(1);
    let forgiven = edits == 1 && length > 4 && (!substituted || length > 8);
    if forgiven && short.as_bytes().first() == long.as_bytes().first() {
        Likeness::Close
    } else {
        Likeness::Different
    }
}

/// Vav and yod are written once or twice; an article or `and` may stand before it; inside a long word a vowel letter
/// may be missing.
fn hebrew_alike(one: &str, other: &str) -> Likeness {
    let plain = |text: &str| text.replace('\'', "").replace("וו", "ו").replace("יי", "י");
    let (one, other) = (plain(one), plain(other));
    let article =
        |one: &str, other: &str| one.chars().count() > 3 && one.strip_prefix(['ה', 'ו']) == Some(other);
    if one == other || article(&one, &other) || article(&other, &one) {
        return Likeness::Same;
    }
    let bones = |text: &str| -> String {
        let last = text.chars().count().saturating_sub(1);
        let kept = text.chars().enumerate().filter(|(at, c)| *at == 0 || *at == last || !"אוי".contains(*c));
        kept.map(|(_, c)| c).collect()
    };
    let (one, other) = (bones(&one), bones(&other));
    if one == other && one.chars().count() >= 3 { Likeness::Close } else { Likeness::Different }
}

/// By how many letters, at most, one way to write a name is longer than another.
const SOUND_SHORTENS: usize = 4;

/// Latin letters without those that are written twice, and with umlauts as one.
fn undoubled(text: &str) -> String {
    let mut letters = String::with_capacity(text.len());
    for letter in text.chars() {
        let umlaut = letter == 'e' && letters.ends_with(['a', 'o', 'u']);
        if !letters.ends_with(letter) && !umlaut {
            letters.push(letter);
        }
    }
    letters
}

/// Latin letters as they sound, so that two ways to write one name in Latin are the same.
pub(super) fn sound(text: &str) -> String {
    let mut sounds = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let (sound, length) = match rest.as_bytes() {
            [b's', b'c', b'h', ..] => ("sh", 3),
            [b't', b'c', b'h', ..] => ("ch", 3),
            [b'k' | b'c', b'h', ..] => ("ch", 2),
            [b't', b'z' | b's', ..] => ("z", 2),
            [b'p', b'h', ..] => ("f", 2),
            [b'c', b'k', ..] => ("k", 2),
            [b't', b'h', ..] => ("t", 2),
            [b'g', b'h', ..] => ("g", 2),
            [b'o', b'u' | b'o', ..] | [b'u', b'e', ..] => ("u", 2),
            [b'e' | b'i', b'e', ..] => ("i", 2),
            [b'd', b'j', ..] => ("d", 2),
            [b'a', b'a' | b'e', ..] => ("a", 2),
            [b'o', b'e', ..] => ("o", 2),
            [b'c' | b'q', ..] => ("k", 1),
            [b'w', ..] => ("v", 1),
            [b'y', ..] => ("i", 1),
            _ => (&rest[..letter.len_utf8()], letter.len_utf8()),
        };
        if sound.len() > 1 || !sounds.ends_with(sound) {
            sounds.push_str(sound);
        }
        rest = &rest[length..];
    }
    if sounds.len() > 3 && sounds.ends_with('h') && !sounds.ends_with("ch") && !sounds.ends_with("sh") {
        sounds.pop();
    }
    sounds
}

/// Whether two rows of words are written the same, spaces apart.
pub(super) fn rows_alike(one: &[&Word], other: &[&Word]) -> Likeness {
    let join = |row: &[&Word]| row.iter().map(|word| word.text.as_str()).collect::<String>();
    let mixed = |row: &[&Word]| row.iter().any(|word| word.script != row[0].script);
    if one.is_empty() || other.is_empty() || mixed(one) || mixed(other) {
        return Likeness::Different;
    }
    texts_alike(&join(one), one[0].script, &join(other), other[0].script)
}

/// How a name's words are found among others.
#[derive(Clone, Debug, Default)]
pub(super) struct Cover {
    /// Of the name, telling words that were found,
    pub(super) found: usize,
    /// words of it that were not: which,
    pub(super) missing: Vec<usize>,
    /// and of the others those that are not of the name: which.
    pub(super) extra: Vec<usize>,
    /// Words that were found by a slip of the pen.
    pub(super) close: usize,
    /// Whether they stand in the same order.
    pub(super) in_order: bool,
}

/// Words that are written as one are found too, up to three.
pub(super) fn cover(name: &[Word], others: &[Word]) -> Cover {
    let mut used = vec![false; others.len()];
    let mut cover = Cover { in_order: true, ..Cover::default() };
    let (mut at, mut last) = (0, None);
    while at < name.len() {
        let Some(found) = find(name, at, others, &used) else {
            cover.missing.push(at);
            at += 1;
            continue;
        };
        used[found.first..found.first + found.count].fill(true);
        cover.found += name[at..at + found.taken].iter().filter(|word| word.is_telling()).count();
        cover.close += usize::from(found.likeness == Likeness::Close);
        cover.in_order &= last.is_none_or(|last| last < found.first);
        last = Some(found.first);
        at += found.taken;
    }
    cover.extra = (0..others.len()).filter(|nth| !used[*nth]).collect();
    cover
}

struct Found {
    /// Words of the name,
    taken: usize,
    /// and where they are among the others.
    first: usize,
    count: usize,
    likeness: Likeness,
}

fn find(name: &[Word], at: usize, others: &[Word], used: &[bool]) -> Option<Found> {
    let mut best: Option<Found> = None;
    let shapes = [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3)];
    for (taken, count) in shapes {
        let Some(ours) = name.get(at..at + taken) else { continue };
        for first in 0..others.len() {
            let Some(theirs) = others.get(first..first + count) else { break };
            if used[first..first + count].contains(&true) {
                continue;
            }
            let likeness = if taken == 1 && count == 1 {
                alike(&ours[0], &theirs[0])
            } else if !may_join(ours, theirs) {
                Likeness::Different
            } else {
                rows_alike(&ours.iter().collect::<Vec<_>>(), &theirs.iter().collect::<Vec<_>>())
            };
            if likeness > best.as_ref().map_or(Likeness::Different, |best| best.likeness) {
                best = Some(Found { taken, first, count, likeness });
            }
        }
        if best.as_ref().is_some_and(|best| best.likeness == Likeness::Same) {
            break;
        }
    }
    best
}

/// Whether rows are worth being compared as if they were written in one word.
fn may_join(ours: &[Word], theirs: &[Word]) -> bool {
    let length = |words: &[Word]| words.iter().map(|word| word.text.chars().count()).sum::<usize>();
    let (our, their) = (length(ours), length(theirs));
    let (short, long) = (our.min(their), our.max(their));
    let fits =
        if ours[0].script == theirs[0].script { long - short <= SOUND_SHORTENS } else { long <= 3 * short };
    let number = ours.iter().chain(theirs).any(Word::is_number);
    fits && !number && !all_kinds(ours) && !all_kinds(theirs)
}

fn all_kinds(words: &[Word]) -> bool {
    words.iter().all(|word| matches!(word.meaning, Meaning::Kind(_) | Meaning::Noise))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrich::matcher::text::words;

    fn likeness(one: &str, other: &str) -> Likeness {
        alike(&words(one)[0], &words(other)[0])
    }

    #[test]
    fn two_ways_to_write_a_name_are_the_same() {
        for (one, other) in [
            ("Benedict", "Benedikt"),
            ("Hatzaken", "Hazaken"),
            ("McDonald", "McDonald's"),
            ("Cafe", "קפה"),
            ("Yaffo", "Yafo"),
            ("הזקן", "Hazaken"),
            ("ויטרינה", "וויטרינה"),
        ] {
            assert_eq!(likeness(one, other), Likeness::Same, "{one} {other}");
        }
    }

    #[test]
    fn short_words_have_no_slips() {
        for (one, other) in
            [("Mia", "Via"), ("Toto", "Tito"), ("51", "15"), ("Roma", "Aroma"), ("Moses", "Moshe")]
        {
            assert_ne!(likeness(one, other), Likeness::Same, "{one} {other}");
        }
        assert_eq!(likeness("Mia", "Via"), Likeness::Different);
        assert_eq!(likeness("51", "15"), Likeness::Different);
    }

    #[test]
    fn spaces_do_not_count() {
        let found = cover(&words("Burger Ranch"), &words("Burgeranch Haifa"));
        assert_eq!((found.missing.len(), found.extra), (0, vec![1]));
        let found = cover(&words("GoodMorning"), &words("Good Morning"));
        assert_eq!((found.missing.len(), found.extra.len()), (0, 0));
    }
}
