//! What every request passes before its handler: is there a place for it, does it come from where it may, who asks, and
//! how often. One layer, because each costs every request a future and a clone of all that is behind it.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::{App, access, limit, origin};

/// Lets a request through to its route, and tells the route who asks.
pub(crate) async fn layer(State(app): State<App>, mut request: Request, next: Next) -> Response {
    // Held until there is an answer.
    let _place = match limit::place(&app, &request) {
        Ok(place) => place,
        Err(refused) => return refused.into_response(),
    };
    let visitor = match origin::check(&app, &request) {
        Ok(visitor) => visitor,
        Err(refused) => return refused.into_response(),
    };
    let mut response = if let Some(answer) = visitor.as_ref().and_then(origin::Visitor::answer) {
        answer
    } else {
        let asked = access::Asked::of(&app, &request);
        let caller = access::caller(&app, asked, request.method(), request.headers()).await;
        match caller.and_then(|caller| limit::check_rate(&app, &caller).map(|()| caller)) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                next.run(request).await
            }
            Err(refused) => refused.into_response(),
        }
    };
    if let Some(visitor) = &visitor {
        visitor.may_read(&app, &mut response);
    }
    response
}
