//! `solely match`, as a person uses it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

fn run(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_solely"))
        .arg("match")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("is read");
    let output = child.wait_with_output().expect("ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn candidates() -> Value {
    json!([
        {"title": "Pizza Hut | Tel Aviv", "url": "https://wolt.com/en/isr/tel-aviv/restaurant/pizza-hut"},
        {"title": "Pizza House | Haifa", "url": "https://wolt.com/en/isr/haifa/restaurant/pizza-house", "snippet": null},
        {"title": "Pizza House | Wolt", "url": "https://wolt.com/en/isr/tel-aviv/restaurant/pizza-house?utm_source=x"},
    ])
}

#[test]
fn it_says_which_and_why() {
    let (code, said, _) = run(&["--name", "Pizza House", "--city", "תל אביב"], &candidates().to_string());
    assert_eq!(code, Some(0));
    for words in [
        "accepted  https://wolt.com/en/isr/tel-aviv/restaurant/pizza-house (score 0.88)",
        "1. Pizza Hut | Tel Aviv [refused]",
        "it is another name",
        "2. Pizza House | Haifa [refused]",
        "it is in another city",
        "3. Pizza House | Wolt [accepted]",
        "the title is the name; the path is of the city",
    ] {
        assert!(said.contains(words), "{words}:\n{said}");
    }
}

#[test]
fn it_says_that_there_is_none() {
    let (code, said, _) =
        run(&["--name", "The Restaurant"], &json!({"candidates": candidates()}).to_string());
    assert_eq!(code, Some(0));
    assert!(said.starts_with("no link   none of 3 candidates"), "{said}");
    assert!(said.contains("the name is of generic words alone"), "{said}");
}

#[test]
fn it_speaks_json() {
    let (_, said, _) =
        run(&["--name", "Pizza House", "--city", "Tel Aviv", "--json"], &candidates().to_string());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["accepted"]["candidate"], 2);
    assert_eq!(said["accepted"]["url"], "https://wolt.com/en/isr/tel-aviv/restaurant/pizza-house");
    assert_eq!(said["candidates"][1]["why"], json!(["other_city"]));
    let none =
        run(&["--name", "Pizza House", "--host", "example.org", "--json"], &candidates().to_string()).1;
    let none: Value = serde_json::from_str(&none).expect("JSON");
    assert_eq!((&none["accepted"], &none["candidates"][0]["why"]), (&Value::Null, &json!(["host_refused"])));
}

#[test]
fn what_are_no_candidates_is_an_error() {
    for input in ["", "{}", "[{\"title\": 1}]", "nonsense"] {
        let (code, said, error) = run(&["--name", "x"], input);
        assert_eq!((code, said.as_str()), (Some(1), ""), "{input}");
        assert!(error.contains("standard input is not a list of candidates"), "{error}");
    }
}
