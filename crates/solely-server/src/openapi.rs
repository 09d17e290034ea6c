//! The description of the routes: what `/openapi.json` serves, and where access looks its rules up.

use utoipa::Modify;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use crate::error::ErrorBody;

/// What is not said by a route.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "solely",
        description = "One caller does the work; everyone gets the answer.\n\n\
            Times are RFC 3339 UTC with milliseconds, ids are UUIDv7 strings, an error is always the one body \
            `ErrorBody`. Lists take `limit` and `cursor` and answer `items` and `nextCursor`.",
    ),
    components(schemas(ErrorBody)),
    modifiers(&Bearer),
    tags(
        (name = "products", description = "Product searches: fresh or stale at once, one call, one refresh"),
        (name = "enrich", description = "Provider links of places, looked up once and told to everyone who waits"),
        (name = "reserve", description = "Boxes held, paid, collected, cancelled, expired: never one too many, never one lost"),
        (name = "leases", description = "Named rights with an end and a fence that only grows"),
        (name = "jobs", description = "Durable unique work, and its dead letters"),
        (name = "queues", description = "Queues and their pauses"),
        (name = "runs", description = "Sources copied one page per message, exactly once"),
        (name = "upstreams", description = "Slow things that are called, and their budgets"),
        (name = "timeline", description = "Why a thing is as it is"),
        (name = "access", description = "Tickets; browsers that log in"),
        (name = "dashboard", description = "Pages for people, and a module for browsers"),
        (name = "health", description = "Alive, ready, metrics, alerts"),
    )
)]
pub(crate) struct Description;

/// Keys and user tokens are sent as `Authorization: Bearer`.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A key (`solely keys create`) with the scope that a route names"))
            .build();
        if let Some(components) = &mut api.components {
            components.add_security_scheme("key", SecurityScheme::Http(bearer));
            let user = HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .bearer_format("JWT")
                .description(Some("A user token, for what is the user's own"))
                .build();
            components.add_security_scheme("user", SecurityScheme::Http(user));
        }
    }
}
