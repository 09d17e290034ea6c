//! What is current of a source.

use axum::extract::State;
use axum::response::Response;
use solely_core::feed::PinWhat;

use crate::App;
use crate::error::{ApiError, ApiErrors};
use crate::extract::Path;
use crate::stream;

/// What is current of a source, one record a line.
#[utoipa::path(
    get,
    path = "/v1/feeds/{source}/records",
    tag = "runs",
    security(("key" = ["feed:read"])),
    params(("source" = String, Path)),
    responses((status = 200, body = String, content_type = "application/x-ndjson"), ApiErrors)
)]
pub(crate) async fn records(
    State(app): State<App>,
    Path(source): Path<String>,
) -> Result<Response, ApiError> {
    stream::records(&app, PinWhat::Current(source)).await
}
