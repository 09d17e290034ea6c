//! A catalogue: products as they came, parsed once, so that a filtered read copies slices and parses nothing.
//!
//! The text of the list is kept as it is. Of each product it is known where its options lie in that text; of each
//! option, where it lies, its id, and the words that it can be found by: product name, option name, option id and
//! supplier id, in small letters, one line for each option in one text, which is searched as a whole.

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::filter::Filter;

/// Products, parsed. Cheap to read from many sides.
#[derive(Debug)]
pub struct Catalogue {
    /// The list as it came: `[…]`.
    text: Box<str>,
    products: Vec<Product>,
    options: Vec<ProductOption>,
    /// What each option can be found by, a line each.
    words: String,
    /// Options by their id.
    by_id: HashMap<Box<str>, Vec<usize>>,
}

/// Where a product lies.
#[derive(Debug)]
struct Product {
    whole: Range<usize>,
    /// The list of its options.
    list: Range<usize>,
    /// Which they are.
    options: Range<usize>,
}

#[derive(Debug)]
struct ProductOption {
    product: usize,
    whole: Range<usize>,
    /// Its line among the words.
    line: Range<usize>,
}

/// What is read of a product.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape<'a> {
    product_name: Option<Value>,
    supplier_id: Option<Value>,
    #[serde(borrow)]
    options: Option<&'a RawValue>,
}

/// What is read of an option.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OptionShape {
    option_id: Option<Value>,
    option_name: Option<Value>,
}

/// What each product of a catalogue that someone brings has to be.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is only read")]
struct Brought {
    product_id: String,
    product_name: Option<String>,
    supplier_id: Option<String>,
    options: Option<Vec<BroughtOption>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "it is only read")]
struct BroughtOption {
    option_id: Option<String>,
    option_name: Option<String>,
}

/// What is wrong with a list of products that someone brings, with the field, if something is.
pub fn problem(text: &str) -> Option<String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let error = serde_path_to_error::deserialize::<_, Vec<Brought>>(&mut json).err()?;
    let path = error.path().to_string();
    let what = error.into_inner().to_string();
    let what = what.split(" at line ").next().unwrap_or_default();
    Some(if path == "." { format!("`products`: {what}") } else { format!("`products{path}`: {what}") })
}

impl Catalogue {
    /// Reads a list of products. Each is an object; its options, if it has any, are a list of objects.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let text: Box<str> = text.trim().into();
        let (mut products, mut options) = (Vec::new(), Vec::new());
        let (mut words, mut by_id) = (String::new(), HashMap::<Box<str>, Vec<usize>>::new());
        for raw in serde_json::from_str::<Vec<&RawValue>>(&text)? {
            let shape: Shape<'_> = serde_json::from_str(raw.get())?;
            let whole = place(&text, raw.get());
            let listed: Vec<&RawValue> = match shape.options {
                Some(list) => serde_json::from_str(list.get())?,
                None => Vec::new(),
            };
            let first = options.len();
            for option in listed {
                let known: OptionShape = serde_json::from_str(option.get())?;
                let start = words.len();
                let fields = [&shape.product_name, &known.option_name, &known.option_id, &shape.supplier_id];
                for field in fields.into_iter().flatten() {
                    words.push_str(&plain(field).to_lowercase().replace('\n', " "));
                    words.push(' ');
                }
                if let Some(id) = &known.option_id {
                    by_id.entry(plain(id).into()).or_default().push(options.len());
                }
                options.push(ProductOption {
                    product: products.len(),
                    whole: place(&text, option.get()),
                    line: start..words.len(),
                });
                words.push('\n');
            }
            let list = shape.options.map_or(whole.end..whole.end, |list| place(&text, list.get()));
            products.push(Product { whole, list, options: first..options.len() });
        }
        Ok(Self { text, products, options, words, by_id })
    }

    /// Without products.
    pub fn empty() -> Self {
        let (products, options, words, by_id) = (Vec::new(), Vec::new(), String::new(), HashMap::new());
        Self { text: "[]".into(), products, options, words, by_id }
    }

    /// How many products there are.
    pub fn len(&self) -> usize {
        self.products.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.products.is_empty()
    }

    /// The list as it came.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes that it takes, about.
    pub fn size(&self) -> usize {
        let places =
            self.products.len() * size_of::<Product>() + self.options.len() * size_of::<ProductOption>();
        // An option's id is kept once more, with its place.
        self.text.len() + self.words.len() + places + self.by_id.len() * 64
    }

    /// The list with what a filter leaves of it, appended as JSON.
    pub fn write_filtered(&self, filter: &Filter, out: &mut Vec<u8>) {
        let kept = match filter {
            Filter::All => return out.extend_from_slice(self.text.as_bytes()),
            Filter::Options(ids) => self.with_ids(ids),
            Filter::Words(words) => self.with_words(words),
        };
        out.push(b'[');
        let mut at = 0;
        while let Some(option) = kept.get(at) {
            let product = &self.products[self.options[*option].product];
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.text[product.whole.start..product.list.start].as_bytes());
            out.push(b'[');
            let first = at;
            while let Some(option) = kept.get(at).filter(|option| product.options.contains(option)) {
                if at > first {
                    out.push(b',');
                }
                out.extend_from_slice(self.text[self.options[*option].whole.clone()].as_bytes());
                at += 1;
            }
            out.push(b']');
            out.extend_from_slice(self.text[product.list.end..product.whole.end].as_bytes());
        }
        out.push(b']');
    }

    /// The options with these ids, in order.
    fn with_ids(&self, ids: &[String]) -> Vec<usize> {
        let mut kept: Vec<usize> =
            ids.iter().filter_map(|id| self.by_id.get(id.as_str())).flatten().copied().collect();
        kept.sort_unstable();
        kept.dedup();
        kept
    }

    /// The options that have all these words, in order. Each word is looked for from where the others were found: the
    /// rarest sets the pace.
    fn with_words(&self, words: &[String]) -> Vec<usize> {
        let finders: Vec<_> = words.iter().map(|word| memchr::memmem::Finder::new(word.as_bytes())).collect();
        let (text, mut kept, mut option) = (self.words.as_bytes(), Vec::new(), 0);
        // How many words in a row were found in the option, and which is next.
        let (mut agreed, mut next) = (0, 0);
        while let Some(from) = self.options.get(option).map(|option| option.line.start) {
            let Some(found) = finders.get(next).and_then(|finder| finder.find(&text[from..])) else { break };
            let there = self.options.partition_point(|option| option.line.end <= from + found);
            agreed = if there == option { agreed + 1 } else { 1 };
            option = there;
            next = (next + 1) % finders.len();
            if agreed == finders.len() {
                kept.push(option);
                option += 1;
                agreed = 0;
            }
        }
        kept
    }
}

/// Where a part lies in its text.
fn place(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

/// A text as it is, anything else as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn filtered(products: &Value, filter: &Filter) -> Value {
        let catalogue = Catalogue::parse(&products.to_string()).expect("parses");
        let mut out = Vec::new();
        catalogue.write_filtered(filter, &mut out);
        serde_json::from_slice(&out).expect("JSON")
    }

    fn kayaks() -> Value {
        json!([
            {"productId": "p1", "productName": "Kayak Tour", "supplierId": "ACME", "rating": 5, "options": [
                {"optionId": "o1", "optionName": "Morning", "units": [1]}, {"optionId": "o2", "optionName": "Evening"}]},
            {"productId": "p2", "productName": "Museum", "options": [{"optionId": "o3", "optionName": "Kayak Hall"}], "more": {}},
            {"productId": "p3", "productName": "Kayak without options", "options": []},
            {"productId": "p4", "productName": "Kayak with nothing"},
        ])
    }

    #[test]
    fn without_a_filter_the_list_is_as_it_was() {
        assert_eq!(filtered(&kayaks(), &Filter::All), kayaks());
        assert_eq!(filtered(&json!([]), &Filter::All), json!([]));
    }

    #[test]
    fn every_word_must_be_there_and_the_rest_is_dropped() {
        let words = |text: &str| Filter::of(Some(text), &[]);
        assert_eq!(
            filtered(&kayaks(), &words("KAYAK evening")),
            json!([
                {"productId": "p1", "productName": "Kayak Tour", "supplierId": "ACME", "rating": 5, "options": [
                    {"optionId": "o2", "optionName": "Evening"}]},
            ])
        );
        let kayak = filtered(&kayaks(), &words("kayak"));
        assert_eq!(kayak.as_array().map(Vec::len), Some(2), "those without options are dropped");
        assert_eq!(filtered(&kayaks(), &words("acme o1"))[0]["options"].as_array().map(Vec::len), Some(1));
        assert_eq!(filtered(&kayaks(), &words("tour museum")), json!([]));
        assert_eq!(
            filtered(&kayaks(), &words("r m")),
            filtered(&kayaks(), &words("m r")),
            "words are looked for one by one"
        );
    }

    #[test]
    fn ids_beat_words() {
        let ids = ["o3".to_owned(), "o1".to_owned(), "o1".to_owned(), "none".to_owned()];
        let kept = filtered(&kayaks(), &Filter::of(Some("nothing"), &ids));
        assert_eq!(
            (&kept[0]["options"][0]["optionId"], &kept[1]["options"][0]["optionId"]),
            (&json!("o1"), &json!("o3"))
        );
        assert_eq!(kept.as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn what_are_no_products_is_refused() {
        for text in ["", "{}", "[1]", "[{\"options\": 5}]", "[{\"options\": [5]}]", "[{}", "null"] {
            assert!(Catalogue::parse(text).is_err(), "{text}");
        }
        assert!(Catalogue::parse("[{\"options\": null}]").is_ok_and(|catalogue| catalogue.len() == 1));
    }

    /// The plain way: parse, filter, write.
    fn plainly(products: &Value, filter: &Filter) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
        let mut kept = Vec::new();
        for product in products.as_array().into_iter().flatten() {
            let keeps = |option: &&Value| match filter {
                Filter::All => true,
                Filter::Options(ids) => ids.iter().any(|id| option["optionId"] == **id),
                Filter::Words(words) => {
                    let all = [
                        &product["productName"],
                        &option["optionName"],
                        &option["optionId"],
                        &product["supplierId"],
                    ];
                    let all: Vec<String> = all.into_iter().map(text).collect();
                    words.iter().all(|word| all.iter().any(|text| text.contains(word.as_str())))
                }
            };
            if *filter == Filter::All {
                kept.push(product.clone());
                continue;
            }
            let options: Vec<Value> =
                product["options"].as_array().into_iter().flatten().filter(keeps).cloned().collect();
            if !options.is_empty() {
                let mut product = product.clone();
                product["options"] = Value::Array(options);
                kept.push(product);
            }
        }
        Value::Array(kept)
    }

    /// Ten thousand products: the plain way takes at least fifty times as long, also for what many have.
    #[test]
    fn filtered_reads_of_a_large_catalogue_are_cheap() {
        let product = |n: usize| {
            let option = |m: usize| {
                json!({"optionId": format!("o{n}-{m}"), "optionName": format!("Option {m}"), "units": [
                    {"unitId": "adult", "unitName": "Adult", "pricing": [{"retail": 100 * n, "currency": "EUR"}]}]})
            };
            let (name, supplier) = (format!("Tour number {n} of the city"), format!("supplier-{}", n % 50));
            json!({"productId": format!("p{n}"), "productName": name, "supplierId": supplier, "options": [option(1), option(2)]})
        };
        let products = Value::Array((0..10_000).map(product).collect());
        let text = products.to_string();
        let catalogue = Catalogue::parse(&text).expect("parses");
        let best = |work: &dyn Fn() -> usize| {
            let once = || {
                let began = std::time::Instant::now();
                std::hint::black_box(work());
                began.elapsed()
            };
            (0..5).map(|_| once()).min().expect("five")
        };
        for search in ["supplier-7 option 2", "number 4711"] {
            let filter = Filter::of(Some(search), &[]);
            let by_slices = best(&|| {
                let mut out = Vec::new();
                catalogue.write_filtered(&filter, &mut out);
                out.len()
            });
            let parsed = best(&|| {
                let products: Value = serde_json::from_str(&text).expect("JSON");
                plainly(&products, &filter).to_string().len()
            });
            println!("{search}: by slices {by_slices:?}, parsed each time {parsed:?}");
            assert!(parsed >= by_slices * 50, "{search}: {parsed:?} is not fifty times {by_slices:?}");
        }
    }

    proptest! {
        #[test]
        fn slices_are_what_the_plain_way_finds(
            names in prop::collection::vec(("[a-cÄß \"\\\\]{0,6}", prop::collection::vec("[a-c1 ]{0,4}", 0..4)), 0..6),
            search in prop::option::of("[a-cA1 *]{0,5}"),
            ids in prop::collection::vec("[a-c1 ]{0,4}", 0..3),
        ) {
            let products: Vec<Value> = names.iter().map(|(name, options)| {
                let options: Vec<Value> =
                    options.iter().map(|id| json!({"optionId": id, "optionName": name})).collect();
                json!({"productName": name, "supplierId": "S", "options": options, "after": [name]})
            }).collect();
            let (products, filter) = (Value::Array(products), Filter::of(search.as_deref(), &ids));
            prop_assert_eq!(filtered(&products, &filter), plainly(&products, &filter));
        }
    }
}
