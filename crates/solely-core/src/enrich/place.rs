//! Results as clients send them, and get them back.
//!
//! A result is an object of which only a few fields are looked at; all the others go back as they came,
//! text and all, and so do the states of other providers. A place in the shape of Google Places (New) is
//! mapped first: `id`, `displayName.text` and `formattedAddress` become `placeId`, `name` and `address`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::request::{PlaceRef, State};
use crate::json::write_text;
use crate::limits;

/// A result, as far as it is looked at.
#[derive(Debug)]
pub struct ResultObject<'a> {
    /// Its id.
    pub place_id: Cow<'a, str>,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its address.
    pub address: Option<Cow<'a, str>>,
    /// All its fields but the states, in order.
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// The states of providers that it came with, in order, and whether it came with any such field.
    providers: Vec<(Cow<'a, str>, &'a RawValue)>,
    has_providers: bool,
    /// The flat `wolt` that it came with.
    wolt: Option<&'a RawValue>,
}

/// In which shape a result comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"placeId","name","address"?,…}`.
    Result,
    /// `{"id","displayName":{"text"},"formattedAddress"?,…}`.
    GooglePlace,
}

impl Shape {
    /// The names of id, name and address.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Self::Result => ["placeId", "name", "address"],
            Self::GooglePlace => ["id", "displayName", "formattedAddress"],
        }
    }
}

#[derive(Deserialize)]
struct DisplayName<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl ResultObject<'_> {
    /// The place to be looked up.
    pub fn place(&self) -> PlaceRef<'_> {
        PlaceRef { place_id: &self.place_id, name: &self.name, address: self.address.as_deref() }
    }

    /// Writes it with its states: of each provider that was asked, and of the others that it came with. That one waits for a
    /// provider that is off is not said, whoever said so before.
    pub fn write(&self, into: &mut String, states: &[(&str, &State)], off: &[&str], legacy_wolt_field: bool) {
        into.push('{');
        for (name, value) in &self.fields {
            write_field(into, name, value.get());
            into.push(',');
        }
        // Where nothing was asked, nothing is added.
        if states.is_empty() && !self.has_providers {
            if !self.fields.is_empty() {
                into.pop();
            }
            self.write_wolt(into, None, off);
            into.push('}');
            return;
        }
        into.push_str("\"providers\":{");
        let is_kept = |(name, state): &&(Cow<'_, str>, &RawValue)| {
            let asked = states.iter().any(|(asked, _)| asked == name);
            let waits_in_vain = off.contains(&&**name) && is_pending(state);
            !asked && !waits_in_vain
        };
        let kept = self.providers.iter().filter(is_kept);
        let mut first = true;
        for (name, value) in kept {
            separate(into, &mut first);
            write_field(into, name, value.get());
        }
        for (name, state) in states {
            separate(into, &mut first);
            write_text(into, name);
            into.push(':');
            write_state(into, state, true);
        }
        into.push('}');
        let asked = states.iter().find(|(name, _)| *name == "wolt").filter(|_| legacy_wolt_field);
        self.write_wolt(into, asked.map(|(_, state)| *state), off);
        into.push('}');
    }

    /// Writes the flat twin: what is known now, or what it came with.
    fn write_wolt(&self, into: &mut String, asked: Option<&State>, off: &[&str]) {
        match (asked, self.wolt.filter(|state| !(off.contains(&"wolt") && is_pending(state)))) {
            (Some(state), _) => {
                into.push_str(",\"wolt\":");
                write_state(into, state, false);
            }
            (None, Some(as_it_came)) => {
                into.push_str(",\"wolt\":");
                into.push_str(as_it_came.get());
            }
            (None, None) => {}
        }
    }
}

fn is_pending(state: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(borrow)]
        status: Cow<'a, str>,
    }
    serde_json::from_str(state.get()).is_ok_and(|Status { status }| status == "PENDING")
}

fn check<E: serde::de::Error>(field: &str, text: &str, most: usize) -> Result<(), E> {
    if text.is_empty() || text.len() > most {
        return Err(E::custom(format!("`{field}` has 1 to {most} bytes")));
    }
    // Those beyond ASCII are two bytes, of which the first is this.
    let may_be_control = |byte: u8| byte.is_ascii_control() || byte == 0xc2;
    if text.bytes().any(may_be_control) && text.chars().any(char::is_control) {
        return Err(E::custom(format!("`{field}` has no control characters")));
    }
    Ok(())
}

/// The text of a string; none if it is something else.
fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if inner.as_bytes().contains(&b'\\') {
        return serde_json::from_str::<Text<'_>>(value.get()).ok().map(|Text(text)| text);
    }
    Some(Cow::Borrowed(inner))
}

fn separate(into: &mut String, first: &mut bool) {
    if !std::mem::take(first) {
        into.push(',');
    }
}

fn write_field(into: &mut String, name: &str, value: &str) {
    write_text(into, name);
    into.push(':');
    into.push_str(value);
}

/// A state as clients see it; the deprecated twin has `status` and `url` alone.
pub fn write_state(into: &mut String, state: &State, whole: bool) {
    let State::Known { resolved, updated_at } = state else {
        into.push_str(r#"{"status":"PENDING","url":null}"#);
        return;
    };
    into.push_str(r#"{"status":""#);
    into.push_str(resolved.status.word());
    into.push_str(r#"","url":"#);
    match &resolved.url {
        Some(url) => write_text(into, url),
        None => into.push_str("null"),
    }
    if whole {
        into.push_str(r#","updatedAt":""#);
        let _ = fmt::write(into, format_args!("{updated_at}\""));
        if let Some(meta) = &resolved.meta {
            let _ = fmt::write(into, format_args!(",\"meta\":{meta}"));
        }
    }
    into.push('}');
}

/// Reads results, if there are any, each in one pass and with what is wrong said where it is.
pub fn results<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Vec<ResultObject<'a>>>, D::Error> {
    from.deserialize_option(List { shape: Shape::Result, field: "results" })
}

/// The same of places in the shape of Google Places (New).
pub fn google_places<'a, D: Deserializer<'a>>(from: D) -> Result<Option<Vec<ResultObject<'a>>>, D::Error> {
    from.deserialize_option(List { shape: Shape::GooglePlace, field: "places" })
}

struct List {
    shape: Shape,
    field: &'static str,
}

impl<'a> Visitor<'a> for List {
    type Value = Option<Vec<ResultObject<'a>>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'a>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut results = Vec::with_capacity(32);
        while let Some(result) = list.next_element_seed(Of(self.shape))? {
            if results.len() >= limits::RESULTS_MAX {
                let (field, most) = (self.field, limits::RESULTS_MAX);
                return Err(A::Error::custom(format!("`{field}` has at most {most} items")));
            }
            results.push(result);
        }
        Ok(Some(results))
    }
}

struct Of(Shape);

impl<'a> DeserializeSeed<'a> for Of {
    type Value = ResultObject<'a>;

    fn deserialize<D: Deserializer<'a>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for Of {
    type Value = ResultObject<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let [id_field, name_field, address_field] = self.0.names();
        let (mut id, mut name, mut address) = (None, None, None);
        let (mut fields, mut providers, mut wolt) = (Vec::with_capacity(8), Vec::new(), None);
        let mut has_providers = false;
        while let Some(Text(field)) = map.next_key::<Text<'a>>()? {
            let value: &'a RawValue = map.next_value()?;
            let wrong = |what: &str| A::Error::custom(format!("`{field}` is {what}"));
            let text = |value: &'a RawValue| text_of(value).ok_or_else(|| wrong("a string"));
            if field == id_field {
                id = Some(text(value)?);
            } else if field == name_field && self.0 == Shape::GooglePlace {
                let name_of: DisplayName<'a> =
                    serde_json::from_str(value.get()).map_err(|_| wrong("an object with a `text`"))?;
                name = Some(name_of.text);
            } else if field == name_field {
                name = Some(text(value)?);
            } else if field == address_field {
                if value.get() != "null" {
                    address = Some(text(value)?).filter(|given| !given.is_empty());
                }
            } else if field == "providers" {
                has_providers = value.get() != "null";
                providers = if value.get() == "null" {
                    Vec::new()
                } else {
                    let mut json = serde_json::Deserializer::from_str(value.get());
                    json.deserialize_map(States).map_err(|_| wrong("an object"))?
                };
                continue;
            } else if field == "wolt" {
                wolt = Some(value);
                continue;
            }
            let mapped = match self.0 {
                // What the mapping gives its own meaning: a place's resource name is none of a result's.
                Shape::GooglePlace if Shape::Result.names().contains(&&*field) => None,
                Shape::GooglePlace if field == id_field => Some((Cow::Borrowed("placeId"), value)),
                Shape::GooglePlace if field == address_field => Some((Cow::Borrowed("address"), value)),
                Shape::GooglePlace if field == name_field => {
                    let text = serde_json::from_str::<DisplayNameText<'a>>(value.get());
                    text.ok().map(|display| (Cow::Borrowed("name"), display.text))
                }
                Shape::Result | Shape::GooglePlace => Some((field, value)),
            };
            fields.extend(mapped);
        }
        let missing = |field| A::Error::custom(format!("missing field `{field}`"));
        let place_id = id.ok_or_else(|| missing(id_field))?;
        let name = name.ok_or_else(|| missing(name_field))?;
        check(id_field, &place_id, limits::KEY_BYTES_MAX)?;
        check(name_field, &name, limits::NAME_BYTES_MAX)?;
        if let Some(text) = &address {
            check(address_field, text, limits::NAME_BYTES_MAX)?;
        }
        Ok(ResultObject { place_id, name, address, fields, providers, has_providers, wolt })
    }
}

/// The name as it came, text and all.
#[derive(Deserialize)]
struct DisplayNameText<'a> {
    #[serde(borrow)]
    text: &'a RawValue,
}

/// Text that is borrowed where it can be.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The states of providers, in order.
struct States;

impl<'a> Visitor<'a> for States {
    type Value = Vec<(Cow<'a, str>, &'a RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut states = Vec::new();
        while let Some(Text(name)) = map.next_key::<Text<'a>>()? {
            states.push((name, map.next_value()?));
        }
        Ok(states)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Resolved, Status};
    use super::*;
    use crate::clock::Timestamp;

    fn read(text: &str, shape: Shape) -> Result<ResultObject<'_>, String> {
        let result = Of(shape).deserialize(&mut serde_json::Deserializer::from_str(text));
        result.map_err(|error| error.to_string().split(" at line ").next().unwrap_or_default().to_owned())
    }

    fn written(text: &Value, shape: Shape, states: &[(&str, &State)]) -> Result<Value, String> {
        let text = text.to_string();
        let mut out = String::new();
        read(&text, shape)?.write(&mut out, states, &[], true);
        Ok(serde_json::from_str(&out).expect("JSON"))
    }

    #[test]
    fn everything_else_is_kept_as_it_came() {
        let text = json!({
            "placeId": "ChIJ", "name": "Pizza \"House\"", "rating": 4.50, "deep": {"a": [1, null]},
            "providers": {"yelp": {"status": "FOUND", "stars": 4}, "wolt": {"status": "PENDING", "url": null}},
            "wolt": {"status": "PENDING", "url": null},
        });
        let found = State::Known {
            resolved: Resolved {
                status: Status::Found,
                url: Some("https://wolt.com/a".to_owned()),
                meta: None,
            },
            updated_at: Timestamp::from_millis(0),
        };
        let got = written(&text, Shape::Result, &[("wolt", &found)]).expect("reads");
        let mut wanted = text.clone();
        wanted["providers"]["wolt"] =
            json!({"status": "FOUND", "url": "https://wolt.com/a", "updatedAt": "1970-01-01T00:00:00.000Z"});
        wanted["wolt"] = json!({"status": "FOUND", "url": "https://wolt.com/a"});
        assert_eq!(got, wanted);
        assert_eq!(
            written(&text, Shape::Result, &[]).expect("reads"),
            text,
            "nothing asked, nothing changed"
        );
    }

    #[test]
    fn nobody_waits_for_a_provider_that_is_off() {
        let text = json!({
            "placeId": "a", "name": "b", "wolt": {"status": "PENDING", "url": null},
            "providers": {"wolt": {"status": "PENDING", "url": null}, "yelp": {"status": "PENDING", "url": null}},
        });
        let text = text.to_string();
        let mut out = String::new();
        read(&text, Shape::Result).expect("reads").write(&mut out, &[], &["wolt"], true);
        let yelp = json!({"yelp": {"status": "PENDING", "url": null}});
        let got: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(got, json!({"placeId": "a", "name": "b", "providers": yelp}));
    }

    #[test]
    fn numbers_keep_their_text() {
        let text = r#"{"placeId":"a","name":"b","n":1.10,"big":12345678901234567890123}"#;
        let mut out = String::new();
        read(text, Shape::Result).expect("reads").write(&mut out, &[], &[], true);
        assert_eq!(out, text, "nothing asked, nothing added");
    }

    #[test]
    fn a_google_place_is_mapped() {
        let text = json!({
            "id": "ChIJ", "displayName": {"text": "Pizza House", "languageCode": "en"},
            "formattedAddress": "1 Main St", "location": {"latitude": 1.5, "longitude": 2.5},
            "rating": 4.5, "userRatingCount": 10, "priceLevel": "PRICE_LEVEL_MODERATE", "types": ["restaurant"],
        });
        let got = written(&text, Shape::GooglePlace, &[("wolt", &State::Pending)]).expect("reads");
        assert_eq!(
            (&got["placeId"], &got["name"], &got["address"]),
            (&json!("ChIJ"), &json!("Pizza House"), &json!("1 Main St"))
        );
        assert_eq!((&got["location"]["latitude"], &got["types"]), (&json!(1.5), &json!(["restaurant"])));
        assert_eq!((&got["id"], &got["wolt"]["status"]), (&Value::Null, &json!("PENDING")));
        // The resource name of a place is not what it is called, wherever it stands.
        for text in [
            r#"{"name":"places/ChIJ","id":"ChIJ","displayName":{"text":"Pizza"},"formattedAddress":""}"#,
            r#"{"id":"ChIJ","displayName":{"text":"Pizza"},"name":"places/ChIJ"}"#,
        ] {
            let mut out = String::new();
            read(text, Shape::GooglePlace).expect("reads").write(&mut out, &[], &[], true);
            assert_eq!(out.matches("\"name\"").count(), 1, "{out}");
            assert!(out.contains(r#""name":"Pizza""#), "{out}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_field() {
        for (text, shape, said) in [
            (json!({"name": "a"}), Shape::Result, "missing field `placeId`"),
            (json!({"placeId": 7, "name": "a"}), Shape::Result, "`placeId` is a string"),
            (json!({"placeId": "", "name": "a"}), Shape::Result, "`placeId` has 1 to 512 bytes"),
            (json!({"placeId": "a\u{7}", "name": "a"}), Shape::Result, "`placeId` has no control characters"),
            (json!({"placeId": "a", "name": "a\u{85}"}), Shape::Result, "`name` has no control characters"),
            (
                json!({"placeId": "a", "name": "a", "providers": []}),
                Shape::Result,
                "`providers` is an object",
            ),
            (json!({"placeId": "a", "name": "a", "address": 1}), Shape::Result, "`address` is a string"),
            (
                json!({"id": "a", "displayName": "b"}),
                Shape::GooglePlace,
                "`displayName` is an object with a `text`",
            ),
        ] {
            assert_eq!(written(&text, shape, &[]).expect_err("is wrong"), said, "{text}");
        }
        assert!(read("[1]", Shape::Result).expect_err("is wrong").contains("an object"));
    }

    #[test]
    fn text_is_read_whatever_is_in_it() {
        let text = r#"{"placeId":"a\u00e9\\","name":"caf\u00e9 \"x\" ©","address":null}"#;
        let got = read(text, Shape::Result).expect("reads");
        assert_eq!((&*got.place_id, &*got.name, &got.address), ("aé\\", "café \"x\" ©", &None));
    }
}
