//! Product search through a slow plugin of one's own: `cargo run -p solely --example products`.
//!
//! Five callers at once are one call; whoever comes later is answered from the cache.

use std::time::Duration;

use solely::products::Search;
use solely::products::filter::Filter;
use solely::{Brought, CallFailed, Catalogue, Plugin, PluginCall, Solely, UpstreamError, async_trait};

/// Has two tours, and takes its time.
struct Tours;

#[async_trait]
impl Plugin for Tours {
    async fn call(&self, call: &PluginCall) -> Result<Brought, CallFailed<UpstreamError>> {
        println!("the plugin is called for {}", call.user_id);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let products = r#"[
            {"productName": "Old Town", "options": [{"optionId": "o1", "optionName": "Morning walk"}]},
            {"productName": "Harbour", "options": [{"optionId": "o2", "optionName": "Boat trip"}]}
        ]"#;
        let catalogue = Catalogue::parse(products);
        let catalogue = catalogue.map_err(|error| CallFailed::permanent(error.to_string()))?;
        Ok(Brought { catalogue, partial: false })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let solely = Solely::builder("sqlite::memory:").plugin("tours", Tours).open().await?;
    let running = solely.start();
    let app = solely.products().app("tours").ok_or("not there")?.clone();
    let search = Search { user_id: "u1".to_owned(), ..Search::default() };

    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let (products, app, search) = (solely.products().clone(), app.clone(), search.clone());
        callers.spawn(async move { products.search(&app, search).await });
    }
    while let Some(answer) = callers.join_next().await {
        let answer = answer?.map_err(|error| format!("{error:?}"))?;
        println!("a caller has {} products, {:?}", answer.catalogue.len(), answer.state);
    }
    let answer = solely.products().search(&app, search).await.map_err(|error| format!("{error:?}"))?;
    let mut found = Vec::new();
    answer.catalogue.write_filtered(&Filter::of(Some("boat"), &[]), &mut found);
    println!("{:?}: {}", answer.state, String::from_utf8(found)?);
    running.shutdown().await;
    Ok(())
}
