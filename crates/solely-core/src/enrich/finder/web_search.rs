//! What finders that search the web have in common: queries from tight to loose, and plain text.

use super::Place;

/// Characters of a name that are searched for: engines refuse long queries.
const NAME_CHARS_MAX: usize = 100;

/// A place's queries, restricted to a provider's hosts.
pub(super) struct Queries {
    name: String,
    city: Option<String>,
    sites: String,
}

impl Queries {
    pub(super) fn of(place: &Place, hosts: &[String]) -> Self {
        // Of a name in two languages one is enough.
        let name = place.name.split('|').map(phrase).find(|name| !name.is_empty()).unwrap_or_default();
        let city = place.city_text.as_deref().map(phrase).filter(|city| !city.is_empty());
        let sites: Vec<String> = hosts.iter().map(|host| format!("site:{host}")).collect();
        Self { name, city, sites: sites.join(" OR ") }
    }

    /// The name and the city, word by word as they are.
    pub(super) fn exactly(&self) -> Option<String> {
        let city = self.city.as_ref()?;
        Some(format!("\"{}\" \"{city}\" {}", self.name, self.sites))
    }

    /// The name as it is, and the city somehow.
    pub(super) fn with_city(&self) -> Option<String> {
        let city = self.city.as_ref()?;
        Some(format!("\"{}\" {city} {}", self.name, self.sites))
    }

    /// The name as it is.
    pub(super) fn by_name(&self) -> String {
        format!("\"{}\" {}", self.name, self.sites)
    }

    /// The name somehow.
    pub(super) fn somehow(&self) -> String {
        format!("{} {}", self.name, self.sites)
    }
}

/// Words that can be put between quotes.
fn phrase(text: &str) -> String {
    let words: String = text.chars().take(NAME_CHARS_MAX).map(|c| if c == '"' { ' ' } else { c }).collect();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text without the tags and entities of HTML.
pub(super) fn plain(html: &str) -> String {
    const ENTITIES: &[(&str, &str)] = &[
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ];
    let (mut text, mut inside) = (String::with_capacity(html.len()), false);
    for c in html.chars() {
        match c {
            '<' => inside = true,
            '>' if inside => inside = false,
            _ if !inside => text.push(c),
            _ => {}
        }
    }
    for (entity, meaning) in ENTITIES {
        text = text.replace(entity, meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_go_from_tight_to_loose() {
        let place = Place {
            name: "Joe \"Fat\" Grill | ג'ו".to_owned(),
            city_text: Some("Tel Aviv".to_owned()),
            ..Place::default()
        };
        let queries = Queries::of(&place, &["wolt.com".to_owned()]);
        assert_eq!(queries.exactly().as_deref(), Some("\"Joe Fat Grill\" \"Tel Aviv\" site:wolt.com"));
        assert_eq!(queries.with_city().as_deref(), Some("\"Joe Fat Grill\" Tel Aviv site:wolt.com"));
        assert_eq!(queries.by_name(), "\"Joe Fat Grill\" site:wolt.com");
        assert_eq!(queries.somehow(), "Joe Fat Grill site:wolt.com");
    }

    #[test]
    fn html_is_taken_away() {
        assert_eq!(plain("<strong>Joe&#x27;s</strong> &amp; Co < 5"), "Joe's & Co ");
    }
}
