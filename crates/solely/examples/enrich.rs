//! Two callers want the link of one place; it is looked up once, and both hear: `cargo run -p solely --example enrich`.

use std::sync::Arc;

use solely::enrich::{Asker, Listens, PlaceRef, Wanted};
use solely::{CallFailed, Finder, Findings, Place, Solely, UpstreamError, async_trait};
use tokio::sync::mpsc;

/// Knows where menus are. It might as well ask somebody, slowly.
struct Menus;

#[async_trait]
impl Finder for Menus {
    async fn ask(
        &self,
        place: &Place,
        _query: usize,
        _trace: Option<&str>,
    ) -> Result<Findings, CallFailed<UpstreamError>> {
        println!("looking up {}", place.name);
        Ok(Findings::Found { url: format!("https://menus.example/{}", place.place_id) })
    }
}

/// Passes on what is told, as a socket would.
struct Ear(mpsc::Sender<String>);

impl Listens for Ear {
    fn push(&self, message: String) -> bool {
        self.0.try_send(message).is_ok()
    }

    fn end(&self) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let solely = Solely::builder("sqlite::memory:").provider("menus", Menus).open().await?;
    let providers = [solely.enrich().provider("menus").ok_or("not there")?.clone()];
    let places = [PlaceRef { place_id: "p1", name: "Pizza House", address: None }];
    let wanted = Wanted { providers: &providers, places: &places, city: Some("Tel Aviv") };

    let mut listeners = Vec::new();
    for name in ["alice", "bob"] {
        let from = Asker { request_id: name.to_owned(), trace: None };
        let answer = solely.enrich().ask(&from, &wanted).await?;
        println!("{name} is told {:?}", answer.states[0][0]);
        let (ear, heard) = mpsc::channel(8);
        let listens = solely.enrich().subscribe(name, Arc::new(Ear(ear)), |_| "SUBSCRIBED".to_owned());
        listeners.push((name, heard, listens.await?));
    }
    let running = solely.start();
    for (name, mut heard, _subscription) in listeners {
        while let Some(message) = heard.recv().await {
            println!("{name} hears {message}");
            if message.contains("RESULT_PATCH") {
                break;
            }
        }
    }
    let answer = solely.enrich().ask(&Asker::default(), &wanted).await?;
    println!("whoever asks now is told {:?}", answer.states[0][0]);
    running.shutdown().await;
    Ok(())
}
