//! Links: whether one may be shown, whether it is a venue's own page, and what its path says.

use reqwest::Url;

use super::Why;
use super::text::{self, Word};
use crate::limits;

/// Sites whose venues are known by their paths: the parts that stand before a venue's, and its city before
/// those. Nothing in a query belongs to the page.
const SITES: &[(&str, &[&str])] = &[("wolt.com", &["restaurant", "venue"])];

/// On other sites, what a path has that leads to many pages.
const ENTRIES: &[&str] = &[
    "search",
    "brand",
    "brands",
    "district",
    "blog",
    "category",
    "categories",
    "tag",
    "tags",
    "discovery",
    "explore",
];
/// The same, at its end.
const LAST_ENTRIES: &[&str] =
    &["restaurants", "restaurant", "venues", "venue", "menu", "stores", "home", "index.html"];

/// Parameters that only say where a visitor came from.
const TRACKING: &[&str] = &[
    "gclid",
    "gclsrc",
    "dclid",
    "wbraid",
    "gbraid",
    "gad_source",
    "fbclid",
    "msclkid",
    "yclid",
    "twclid",
    "ttclid",
    "igshid",
    "igsh",
    "mc_cid",
    "mc_eid",
    "_ga",
    "_gl",
    "srsltid",
    "ref",
    "ref_src",
    "referrer",
    "_hsenc",
    "_hsmi",
    "mkt_tok",
    "si",
    "_branch_match_id",
    "_branch_referrer",
    "adjust_t",
    "adjust_tracker",
    "adjust_campaign",
    "cmpid",
    "campaign",
];
const TRACKING_PREFIXES: &[&str] = &["utm_", "hsa_", "af_", "pk_", "mtm_"];

/// A page as its address describes it.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// The part of the path that names a city, on sites that have one.
    pub(super) city: Option<Vec<Word>>,
    /// The words of the path's last part.
    pub(super) slug: Vec<Word>,
    /// Of pages that are one venue's, whatever their language, the same.
    pub(super) venue: String,
}

/// Whether a link may be shown: of the web, not too long, and on one of the hosts or below it. No hosts: on
/// any.
pub fn is_allowed(url: &str, hosts: &[String]) -> bool {
    parse(url, hosts).is_some()
}

fn parse(url: &str, hosts: &[String]) -> Option<Url> {
    if url.len() > limits::LINK_BYTES_MAX {
        return None;
    }
    let url = Url::parse(url).ok()?;
    let host = url.host_str().filter(|_| matches!(url.scheme(), "http" | "https"))?;
    let plain = url.username().is_empty() && url.password().is_none();
    let allowed = hosts.is_empty() || hosts.iter().any(|allowed| is_below(host, allowed));
    (plain && allowed).then_some(url)
}

fn is_below(host: &str, allowed: &str) -> bool {
    let allowed = allowed.to_lowercase();
    host == allowed || host.strip_suffix(&allowed).is_some_and(|rest| rest.ends_with('.'))
}

/// What an address says of its page, or why the page is none of a venue.
pub(super) fn page(url: &str, hosts: &[String]) -> Result<Page, Why> {
    let url = parse(url, hosts).ok_or(Why::HostRefused)?;
    let segments: Vec<&str> = url.path().split('/').filter(|segment| !segment.is_empty()).collect();
    let host = url.host_str().unwrap_or_default();
    match SITES.iter().find(|(site, _)| is_below(host, site)) {
        Some((_, markers)) => venue_page(&segments, markers),
        None => any_page(&url, &segments),
    }
}

/// A page of a site whose venues are known by their paths.
fn venue_page(segments: &[&str], markers: &[&str]) -> Result<Page, Why> {
    let [before @ .., marker, venue] = segments else { return Err(Why::PathRefused) };
    if !markers.contains(&marker.to_lowercase().as_str()) {
        return Err(Why::PathRefused);
    }
    // A language or a country is shorter.
    let city = before.last().filter(|segment| segment.len() > 3);
    let venue_is = format!("{}/{}", city.unwrap_or(&"").to_lowercase(), venue.to_lowercase());
    Ok(Page { city: city.map(|city| text::slug(city)), slug: text::slug(venue), venue: venue_is })
}

/// A page of any other site: not one that leads to many.
fn any_page(url: &Url, segments: &[&str]) -> Result<Page, Why> {
    let known = |segment: &&str, words: &[&str]| words.contains(&segment.to_lowercase().as_str());
    let last = segments.last().ok_or(Why::PathRefused)?;
    if segments.iter().any(|segment| known(segment, ENTRIES)) || known(last, LAST_ENTRIES) {
        return Err(Why::PathRefused);
    }
    // Where the last part is a number, the one before it may be the name.
    let telling = |segment: &&&str| {
        text::slug(segment).iter().any(|word| word.is_telling() && !word.is_number() && !word.is_opaque())
    };
    let named = segments.iter().rev().take(2).find(telling).unwrap_or(last);
    Ok(Page { city: None, slug: text::slug(named), venue: url.path().to_lowercase() })
}

/// The link without what only tells where a visitor came from.
pub(super) fn without_tracking(link: &str) -> String {
    let (rest, _) = link.split_once('#').unwrap_or((link, ""));
    let Some((page, query)) = rest.split_once('?') else { return rest.to_owned() };
    let host = Url::parse(link).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
    if SITES.iter().any(|(site, _)| is_below(&host, site)) {
        return page.to_owned();
    }
    let tracks = |parameter: &&str| {
        let name = parameter.split('=').next().unwrap_or_default().to_lowercase();
        TRACKING.contains(&name.as_str()) || TRACKING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let kept: Vec<&str> =
        query.split('&').filter(|parameter| !parameter.is_empty() && !tracks(parameter)).collect();
    if kept.is_empty() { page.to_owned() } else { format!("{page}?{}", kept.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_venues_own_page_is_one() {
        let hosts = ["wolt.com".to_owned()];
        for path in ["en/isr/tel-aviv/restaurant/x", "he/isr/haifa/venue/x", "EN/isr/tel-aviv/Restaurant/x/"]
        {
            assert!(page(&format!("https://wolt.com/{path}"), &hosts).is_ok(), "{path}");
        }
        for path in [
            "",
            "en",
            "en/isr/tel-aviv",
            "en/isr/tel-aviv/restaurants",
            "en/isr/tel-aviv/brand/x",
            "en/search?q=restaurant",
            "en/isr/tel-aviv/restaurant/x/menu-item",
            "en/isr/tel-aviv/district/x",
            "restaurant",
        ] {
            assert_eq!(
                page(&format!("https://wolt.com/{path}"), &hosts).err(),
                Some(Why::PathRefused),
                "{path}"
            );
        }
    }

    #[test]
    fn a_link_elsewhere_is_none() {
        let hosts = ["wolt.com".to_owned()];
        for url in [
            "https://evil.com/wolt.com/en/isr/a/restaurant/x",
            "https://notwolt.com/en/isr/a/restaurant/x",
            "https://wolt.com.evil.com/en/isr/a/restaurant/x",
            "https://wolt.com@evil.com/en/isr/a/restaurant/x",
            "https://me:secret@wolt.com/en/isr/a/restaurant/x",
            "javascript:alert(1)",
            "ftp://wolt.com/en/isr/a/restaurant/x",
            "https://w\u{43e}lt.com/en/isr/a/restaurant/x",
            "x",
            &format!("https://wolt.com/{}/restaurant/x", "x".repeat(limits::LINK_BYTES_MAX)),
        ] {
            assert_eq!(page(url, &hosts).err(), Some(Why::HostRefused), "{url}");
        }
        assert!(is_allowed("https://www.WOLT.com/en", &hosts));
        assert!(is_allowed("https://anywhere.example/x", &[]));
    }

    #[test]
    fn tracking_is_taken_away() {
        for (link, clean) in [
            ("https://wolt.com/a?utm_source=x&b=1#c", "https://wolt.com/a"),
            ("https://10bis.co.il/a?id=7&gclid=x&UTM_medium=y", "https://10bis.co.il/a?id=7"),
            ("https://10bis.co.il/a?fbclid=x#:~:text=a", "https://10bis.co.il/a"),
            ("https://wolt.com/a", "https://wolt.com/a"),
        ] {
            assert_eq!(without_tracking(link), clean);
        }
    }
}
