//! Every route, on one screen.

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::ApiError;
use crate::openapi::Description;
use crate::routes::{
    alert, dashboard, dead_letter, docs, enrich, feed, health, inventory, job, lease, merchant, metrics,
    products, queue, reservation, run, session, ticket, timeline, upstream, waitlist,
};
use crate::{App, access, gate, request_id, ws};

fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::text))
        .routes(routes!(docs::openapi))
        .routes(routes!(docs::page))
        .routes(routes!(docs::script))
        .routes(routes!(docs::style))
        .routes(routes!(ws::open))
        .routes(routes!(ticket::create))
        .routes(routes!(lease::list, lease::acquire))
        .routes(routes!(lease::renew, lease::release))
        .routes(routes!(job::list))
        .routes(routes!(job::show))
        .routes(routes!(job::retry))
        .routes(routes!(queue::list))
        .routes(routes!(queue::pause))
        .routes(routes!(queue::resume))
        .routes(routes!(dead_letter::list))
        .routes(routes!(dead_letter::redrive))
        .routes(routes!(enrich::ask))
        .routes(routes!(enrich::warm))
        .routes(routes!(enrich::recall))
        .routes(routes!(enrich::look, enrich::forget))
        .routes(routes!(products::search))
        .routes(routes!(products::put))
        .routes(routes!(merchant::create))
        .routes(routes!(merchant::create_box_type))
        .routes(routes!(inventory::list, inventory::create))
        .routes(routes!(inventory::show, inventory::change))
        .routes(routes!(inventory::audit))
        .routes(routes!(waitlist::list, waitlist::join))
        .routes(routes!(waitlist::leave))
        .routes(routes!(reservation::list, reservation::create))
        .routes(routes!(reservation::show))
        .routes(routes!(reservation::confirm))
        .routes(routes!(reservation::collect))
        .routes(routes!(reservation::cancel))
        .routes(routes!(reservation::extend))
        .routes(routes!(reservation::accept))
        .routes(routes!(reservation::audit))
        .routes(routes!(run::list, run::start))
        .routes(routes!(run::show))
        .routes(routes!(run::cancel))
        .routes(routes!(run::resume))
        .routes(routes!(run::retry))
        .routes(routes!(run::reset))
        .routes(routes!(run::records))
        .routes(routes!(feed::records))
        .routes(routes!(upstream::list))
        .routes(routes!(timeline::list))
        .routes(routes!(alert::list))
        .routes(routes!(session::show))
        .routes(routes!(session::login))
        .routes(routes!(session::logout))
        .routes(routes!(dashboard::overview))
        .routes(routes!(dashboard::enrich))
        .routes(routes!(dashboard::products))
        .routes(routes!(dashboard::boxes))
        .routes(routes!(dashboard::runs))
        .routes(routes!(dashboard::jobs))
        .routes(routes!(dashboard::leases))
        .routes(routes!(dashboard::upstreams))
        .routes(routes!(dashboard::alerts))
        .routes(routes!(dashboard::explain))
        .routes(routes!(dashboard::asset))
        .routes(routes!(dashboard::vendor))
        .routes(routes!(dashboard::client))
}

/// The description of the routes.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut api = described().into_openapi();
    env!("CARGO_PKG_VERSION").clone_into(&mut api.info.version);
    api
}

/// The routes and the layers around them.
///
/// # Panics
/// If a route's description does not say who may call it: a mistake in the program, which a test
/// finds.
pub fn router(app: App) -> Router {
    let api = openapi();
    let rules = access::rules(&api).expect("every route says who may call it");
    let described_as = serde_json::to_string(&api).expect("a description is JSON");
    let app = app.with(|app| {
        app.access = app.access.clone().with_rules(rules);
        app.openapi = described_as.into();
    });
    let (mut router, _) = described().split_for_parts();
    if app.demo {
        router = router.route("/demo/{file}", get(dashboard::demo_page));
    }
    router
        .fallback(|| async { ApiError::not_found("There is no such route.") })
        .method_not_allowed_fallback(|| async {
            let message = "This route does not know this method.";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
        })
        .layer(RequestBodyTimeoutLayer::new(solely_core::limits::BODY_PAUSE_MAX))
        .layer(CatchPanicLayer::custom(request_id::panicked))
        .layer(from_fn_with_state(app.clone(), gate::layer))
        .layer(from_fn(request_id::layer))
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A route that does not say who may call it fails here.
    #[test]
    fn every_route_says_who_may_call_it() {
        let rules = access::rules(&openapi()).expect("all of them do");
        assert!(rules.len() > 15, "{rules:?}");
    }
}
