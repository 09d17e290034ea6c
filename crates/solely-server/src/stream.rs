//! Streams of records: newline-delimited JSON, a few records read at a time.
//!
//! What is read is pinned, so a run that becomes current meanwhile changes nothing, and between
//! two reads nothing is held: a slow reader keeps nobody waiting. A stream that cannot go on ends
//! without its end mark, so that a client can tell.

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use solely_core::clock::Timestamp;
use solely_core::feed::{PinWhat, StoredRecord, Stream};
use solely_core::{Json, RunId, StoreError};

use crate::App;
use crate::error::ApiError;

/// One line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    id: &'a str,
    payload: &'a Json,
    run_id: RunId,
    updated_at: Timestamp,
}

/// The records of what is pinned.
pub(crate) async fn records(app: &App, what: PinWhat) -> Result<Response, ApiError> {
    let configured = matches!(&what, PinWhat::Current(source) if app.feed.source(source).is_some());
    let stream = match app.feed.stream(what).await? {
        Some(stream) if stream.pinned.forgotten => {
            let message = "What this run saw is kept for an hour after a later one becomes current.";
            return Err(ApiError::new(StatusCode::GONE, "RECORDS_GONE", message));
        }
        Some(stream) => Some(stream),
        // A source that was never copied has no records.
        None if configured => None,
        None => return Err(ApiError::not_found("There is no such run or source.")),
    };
    let lines = futures::stream::try_unfold(stream, |stream| async move {
        let Some(mut stream) = stream else { return Ok(None) };
        let next = next_lines(&mut stream).await?;
        Ok::<_, StoreError>(next.map(|lines| (lines, Some(stream))))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

async fn next_lines(stream: &mut Stream) -> Result<Option<Bytes>, StoreError> {
    let records = stream.next().await?;
    let mut lines =
        Vec::with_capacity(records.iter().map(|record| record.payload.as_str().len() + 160).sum());
    for record in &records {
        let StoredRecord { id, payload, run, updated_at } = record;
        let line = Line { id, payload, run_id: *run, updated_at: *updated_at };
        serde_json::to_writer(&mut lines, &line).expect("a line is JSON");
        lines.push(b'\n');
    }
    Ok((!records.is_empty()).then(|| Bytes::from(lines)))
}
