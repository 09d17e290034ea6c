//! What of a catalogue is asked for.

/// A filter. Ids beat words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Everything, as it is.
    All,
    /// Options with one of these ids.
    Options(Vec<String>),
    /// Options that have every one of these words, in small letters.
    Words(Vec<String>),
}

impl Filter {
    /// What a request asks for. Nothing, and `*`, are everything.
    pub fn of(search_input: Option<&str>, option_ids: &[String]) -> Self {
        if !option_ids.is_empty() {
            return Self::Options(option_ids.to_vec());
        }
        let words: Vec<String> =
            search_input.unwrap_or_default().split_whitespace().map(str::to_lowercase).collect();
        match &words[..] {
            [] => Self::All,
            [star] if star == "*" => Self::All,
            _ => Self::Words(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_and_a_star_are_everything() {
        for text in [None, Some(""), Some("  "), Some("*"), Some(" * ")] {
            assert_eq!(Filter::of(text, &[]), Filter::All, "{text:?}");
        }
        assert_eq!(
            Filter::of(Some(" Kayak  TOUR"), &[]),
            Filter::Words(vec!["kayak".to_owned(), "tour".to_owned()])
        );
        assert_eq!(Filter::of(Some("*"), &["o1".to_owned()]), Filter::Options(vec!["o1".to_owned()]));
    }
}
