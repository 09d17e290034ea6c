//! Addresses: the street and the number, and whether a page has the same.

use super::city::City;
use super::likeness::{Likeness, alike};
use super::text::{self, Word};
use super::vocabulary::Meaning;

/// Words that say that something is a street, and not which.
const STREET: &[&str] = &[
    "st",
    "street",
    "str",
    "strasse",
    "road",
    "rd",
    "ave",
    "avenue",
    "blvd",
    "boulevard",
    "sderot",
    "sd",
    "derech",
    "lane",
    "ln",
    "square",
    "sq",
    "way",
    "drive",
    "dr",
    "rehov",
    "rue",
    "via",
    "ulica",
    "ulice",
    "ul",
    "utca",
    "ut",
    "tie",
    "katu",
    "gade",
    "cesta",
    "u",
    "pr",
    "prospekt",
    "ulitsa",
    "namesti",
    "gata",
    "vej",
    "no",
    "רחוב",
    "רח",
    "שדרות",
    "שד",
    "דרכ",
    "ככר",
    "כיכר",
    "סמטת",
];

/// Words that stand beside a number that is not of a house.
const SENTENCE: &[&str] = &[
    "open", "until", "hours", "rating", "rated", "min", "minutes", "minimum", "over", "since", "dishes",
    "only", "about", "up", "est",
];

/// Words of an address that are held against a page.
const WORDS_MAX: usize = 12;
/// Longer numbers are not of houses.
const DIGITS_MAX: usize = 4;

/// What is known of where a place is.
#[derive(Clone, Debug, Default)]
pub(super) struct Address {
    /// The telling words of its street.
    street: Vec<Word>,
    number: Option<String>,
    /// Telling words of all its parts: a mall, a quarter.
    words: Vec<Word>,
}

/// What a page says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// Another address.
    Other,
    Nothing,
    /// The same street.
    Street,
    /// The same street and number.
    House,
}

impl Address {
    pub(super) fn of(text: &str, city: Option<&City>) -> Self {
        let mut address = Self::default();
        for part in text.split(',') {
            let words = text::words(part);
            let house = words.iter().find(|word| is_house(word)).map(|word| word.text.clone());
            let is_city = City::of(part).is_some_and(|part| part.is_known())
                || city.is_some_and(|city| city.named_at_start(&words) == words.len());
            // A street may have a city's name.
            if is_city && (house.is_none() || address.is_known()) {
                continue;
            }
            let street: Vec<Word> = words.into_iter().filter(is_of_street).collect();
            address.words.extend_from_slice(&street);
            // What has a number is the street, and what has none may be a mall.
            if !street.is_empty()
                && (address.street.is_empty() || (address.number.is_none() && house.is_some()))
            {
                (address.street, address.number) = (street, house);
            } else if address.number.is_none() {
                // "Dizengoff St, 50".
                address.number = house.filter(|_| street.is_empty());
            }
        }
        address.words.truncate(WORDS_MAX);
        address
    }

    pub(super) fn is_known(&self) -> bool {
        !self.street.is_empty()
    }

    /// Whether a word is of its street.
    pub(super) fn has(&self, word: &Word) -> bool {
        self.words.iter().any(|ours| same_street(ours, word))
    }

    /// What the parts of a text say.
    pub(super) fn evidence(&self, parts: &[Vec<Word>], city: Option<&City>) -> Evidence {
        if !self.is_known() {
            return Evidence::Nothing;
        }
        let said: Vec<Evidence> = parts.iter().map(|part| self.evidence_of(part, city)).collect();
        let best = said.iter().copied().max().unwrap_or(Evidence::Nothing);
        if best < Evidence::House && said.contains(&Evidence::Other) { Evidence::Other } else { best }
    }

    fn evidence_of(&self, part: &[Word], city: Option<&City>) -> Evidence {
        let ours = |word: &Word| {
            word.text.chars().count() > 2 && self.street.iter().any(|street| same_street(street, word))
        };
        let mut best = Evidence::Nothing;
        let mut other = false;
        let mut at = 0;
        while at < part.len() {
            let length = part[at..].iter().take_while(|word| ours(word)).count();
            if length > 0 {
                // The number is behind the street, or before it.
                let behind = part[at + length..].iter().find(|word| !is_street(word));
                let before = part[..at].iter().rev().find(|word| !is_street(word));
                let near: Vec<&Word> =
                    behind.into_iter().chain(before).filter(|word| is_house(word)).collect();
                match &self.number {
                    Some(number) if near.iter().any(|word| word.text == *number) => return Evidence::House,
                    Some(_) if !near.is_empty() => other = true,
                    _ if length == self.street.len() => best = Evidence::Street,
                    _ => {}
                }
            }
            at += length.max(1);
        }
        if other {
            return Evidence::Other;
        }
        if best == Evidence::Street {
            return best;
        }
        if self.is_another(part, city) { Evidence::Other } else { Evidence::Nothing }
    }

    /// A part that is nothing but a street and a number, of which the number is not ours either.
    fn is_another(&self, part: &[Word], city: Option<&City>) -> bool {
        let mut words = Vec::new();
        let mut at = 0;
        while at < part.len() {
            let named = city.map_or(0, |city| city.named_at_start(&part[at..]));
            if named == 0 {
                words.push(&part[at]);
            }
            at += named.max(1);
        }
        let marked = words.iter().any(|word| is_street(word));
        let houses: Vec<&&Word> = words.iter().filter(|word| is_house(word)).collect();
        let names: Vec<&&Word> = words.iter().filter(|word| !is_street(word) && !word.is_number()).collect();
        // The name of a street is written with large letters.
        let telling = names.iter().all(|word| word.is_telling() && !word.small);
        let [house] = houses[..] else { return false };
        let other_number = self.number.as_ref().is_some_and(|number| house.text != *number);
        let at_an_end = words.first().is_some_and(|word| is_house(word))
            || words.last().is_some_and(|word| is_house(word));
        (1..=3).contains(&names.len())
            && telling
            && at_an_end
            && other_number
            && !names.iter().any(|word| SENTENCE.contains(&word.text.as_str()))
            && (marked || house.text.len() <= 3)
    }
}

/// A street's kind may be written at its name, and short.
fn same_street(one: &Word, other: &Word) -> bool {
    let stem = |word: &Word| {
        let text = word.text.as_str();
        let stem = text.strip_suffix("strasse").or_else(|| text.strip_suffix("str"))?;
        (stem.len() > 3).then(|| stem.to_owned())
    };
    alike(one, other) == Likeness::Same || stem(one).is_some_and(|one| stem(other) == Some(one))
}

fn is_street(word: &Word) -> bool {
    STREET.contains(&word.text.as_str())
}

fn is_house(word: &Word) -> bool {
    word.is_number() && word.text.len() <= DIGITS_MAX
}

fn is_of_street(word: &Word) -> bool {
    !is_street(word) && !word.text.bytes().any(|byte| byte.is_ascii_digit()) && word.meaning != Meaning::Noise
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(address: &str, text: &str) -> Evidence {
        let city = City::of("Tel Aviv");
        Address::of(address, city.as_ref()).evidence(&text::parts(text), city.as_ref())
    }

    #[test]
    fn the_same_street_and_number_are_strong() {
        for text in
            ["Order. Dizengoff 50, Tel Aviv", "50 Dizengoff St.", "דיזנגוף 50, תל אביב", "at Dizengoff St 50"]
        {
            assert_eq!(evidence("Dizengoff St 50, Tel Aviv-Yafo, Israel", text), Evidence::House, "{text}");
        }
        assert_eq!(evidence("Dizengoff St 50, Tel Aviv", "on Dizengoff, since 1999"), Evidence::Street);
    }

    #[test]
    fn another_address_is_told_from_none() {
        for text in ["Rothschild 3, Tel Aviv", "Dizengoff 99, Tel Aviv. Open", "Herzl St 12"] {
            assert_eq!(evidence("Dizengoff St 50, Tel Aviv", text), Evidence::Other, "{text}");
        }
        for text in ["Open until 23", "30 minutes", "Over 100 dishes to order", "Fast delivery in Tel Aviv"] {
            assert_eq!(evidence("Dizengoff St 50, Tel Aviv", text), Evidence::Nothing, "{text}");
        }
    }
}
