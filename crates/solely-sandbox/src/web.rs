//! The web as the sandbox's searches know it: of each place its page at Wolt, and one at Tripadvisor for those who search
//! there, among others that are not its own. Places whose name begins with `Nowhere` have none.

use crate::Sandbox;
use crate::finder::page_of;

/// A page of it.
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) url: String,
    pub(crate) snippet: String,
}

/// What there is for a name.
pub(crate) fn pages(name: &str, city: Option<&str>, known: bool) -> Vec<Page> {
    let other = Page {
        title: "Somewhere Else | Wolt".to_owned(),
        url: page_of("somewhere-else", None),
        snippet: "Another place.".to_owned(),
    };
    if !known {
        return vec![other];
    }
    let elsewhere =
        Page { title: name.to_owned(), url: "https://example.org/menu".to_owned(), snippet: String::new() };
    let own = Page {
        title: format!("{name} | Wolt"),
        url: page_of(name, city),
        snippet: format!("Order from {name}."),
    };
    vec![other, elsewhere, own]
}

/// What a query is answered with. Its name and its city may be quoted, and `site:` ends it.
pub(crate) fn search(sandbox: &Sandbox, query: &str) -> Vec<Page> {
    sandbox.calls().note_query(query);
    let asked = query.split("site:").next().unwrap_or_default().trim();
    let quoted: Vec<&str> = asked.split('"').map(str::trim).collect();
    let (name, city, looseness) = match quoted[..] {
        [_, name, _, city, _] => (name, Some(city), 1),
        [_, name, ""] => (name, None, 3),
        [_, name, city] => (name, Some(city), 2),
        _ => (asked, None, 4),
    };
    let known = !name.starts_with("Nowhere") && looseness >= sandbox.calls().found_from;
    let mut pages = pages(name, city, known);
    if known && query.contains("site:tripadvisor.com") {
        pages.push(review_of(name, city.unwrap_or("Tel Aviv")));
    }
    pages
}

/// A page at Tripadvisor.
fn review_of(name: &str, city: &str) -> Page {
    let part = |text: &str| text.replace(' ', "_");
    let slug = format!("Restaurant_Review-g293984-d1234567-Reviews-{}-{}", part(name), part(city));
    Page {
        title: format!("{name}, {city} - Restaurant Reviews & Photos - Tripadvisor"),
        url: format!("https://www.tripadvisor.com/{slug}.html?utm_source=search"),
        snippet: format!("{name}, {city}: see 60 unbiased reviews."),
    }
}
