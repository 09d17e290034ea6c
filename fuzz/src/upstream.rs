//! An upstream that answers whatever it likes: which kind, with which status, then the body.

use std::sync::{Arc, LazyLock, Mutex};

use axum::Router;
use axum::http::StatusCode;
use serde_json::Map;
use solely_core::enrich::finder::{Finder, Findings, Place, brave, google_cse, http as finder, wolt};
use solely_core::enrich::matcher;
use solely_core::feed::PriceRange;
use solely_core::feed::source::{Scope, Source, Window, http as source, nivoda};
use solely_core::products::plugin::{Plugin, PluginCall, http as plugin, octo};
use solely_core::upstream::http::{HttpClient, Tls};
use tokio::runtime::Runtime;

/// What is answered next.
type Answer = Arc<Mutex<(StatusCode, Vec<u8>)>>;

struct World {
    runtime: Runtime,
    answer: Answer,
    finders: Vec<Box<dyn Finder>>,
    plugins: Vec<Box<dyn Plugin>>,
    sources: Vec<Box<dyn Source>>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answer: Answer = Arc::new(Mutex::new((StatusCode::OK, Vec::new())));
    let url = runtime.block_on(serve(answer.clone()));
    let client = HttpClient::new(Tls::Nobody).expect("a client");
    let (hosts, key) = (vec!["wolt.com".to_owned()], || "key".to_owned());
    World {
        finders: vec![
            Box::new(finder::HttpFinder::new(client.clone(), &url, None)),
            Box::new(brave::BraveFinder::new(client.clone(), &url, key(), hosts.clone())),
            Box::new(google_cse::GoogleCseFinder::new(client.clone(), &url, key(), key(), hosts)),
            Box::new(wolt::WoltFinder::new(client.clone(), &url)),
        ],
        plugins: vec![
            Box::new(plugin::HttpPlugin::new(client.clone(), &url)),
            Box::new(octo::OctoPlugin::new(client.clone(), &url)),
        ],
        sources: vec![
            Box::new(source::HttpSource::new(client.clone(), &url, None)),
            Box::new(nivoda::NivodaSource::new(client, &url, key(), key())),
        ],
        runtime,
        answer,
    }
});

async fn serve(answer: Answer) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let routes = Router::new().fallback(async move || answer.lock().expect("nobody panics").clone());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

pub(crate) fn fuzz(data: &[u8]) {
    let [kind, status, body @ ..] = data else { return };
    let world = &*WORLD;
    let status = [200, 200, 200, 200, 404, 429, 500, 204][usize::from(status % 8)];
    let status = StatusCode::from_u16(status).expect("a status");
    *world.answer.lock().expect("nobody panics") = (status, body.to_vec());
    let kind = usize::from(kind % 8);
    world.runtime.block_on(async {
        match kind {
            0..4 => find(&*world.finders[kind]).await,
            4..6 => bring(&*world.plugins[kind - 4]).await,
            _ => copy(&*world.sources[kind - 6]).await,
        }
    });
}

async fn find(finder: &dyn Finder) {
    let text = |text: &str| Some(text.to_owned());
    let place = Place {
        place_id: "p".to_owned(),
        name: "Pizza House | פיצה האוס".to_owned(),
        city_text: text("Tel Aviv"),
        address_text: text("Dizengoff 99, Tel Aviv"),
    };
    if let Ok(Findings::Candidates(candidates)) = finder.ask(&place, 0, None).await {
        let _ = matcher::decide(&place, &["wolt.com".to_owned()], &candidates);
    }
}

async fn bring(plugin: &dyn Plugin) {
    let call = PluginCall {
        operation: "searchProducts".to_owned(),
        token: Map::new(),
        payload: Map::new(),
        user_id: "u".to_owned(),
        hint: None,
        request_id: "r".to_owned(),
        trace: None,
    };
    let _ = plugin.call(&call).await;
}

async fn copy(source: &dyn Source) {
    let scope = Scope { range: PriceRange { min: 0, max: 250_000 }, updated: None, trace: None };
    let _ = source.count(&scope).await;
    let _ = source.page(&scope, &Window { offset: 0, limit: 30 }).await;
}
