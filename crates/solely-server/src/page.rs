//! Lists: `limit` and `cursor` in, `items` and `nextCursor` out.

use serde::Serialize;
use solely_core::limits;
use utoipa::ToSchema;

use crate::error::ApiError;

/// A page of a list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Page<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page of at most `limit` of these, of which one more was asked for.
    pub(crate) fn of(mut items: Vec<T>, limit: u32, cursor: impl Fn(&T) -> String) -> Self {
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next_cursor = if more { items.last().map(cursor) } else { None };
        Self { items, next_cursor }
    }

    /// A page of at most `limit` of a short list that is all there, from behind the cursor on.
    pub(crate) fn part_of(
        mut items: Vec<T>,
        limit: u32,
        after: Option<&str>,
        cursor: impl Fn(&T) -> String,
    ) -> Self {
        if let Some(after) = after {
            let place = items.iter().position(|item| cursor(item) == after);
            items.drain(..place.map_or(items.len(), |place| place + 1));
        }
        Self::of(items, limit, cursor)
    }

    /// The same page of other things.
    pub(crate) fn map<U>(self, change: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(change).collect(), next_cursor: self.next_cursor }
    }
}

/// The page size that was asked for.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, ApiError> {
    let limit = asked.unwrap_or(limits::PAGE_DEFAULT);
    if !(1..=limits::PAGE_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("`limit` is 1 to {}", limits::PAGE_MAX)));
    }
    Ok(limit)
}

/// Where the last page ended.
pub(crate) fn cursor<T: std::str::FromStr>(text: Option<&str>) -> Result<Option<T>, ApiError> {
    let parse =
        |text: &str| text.parse().map_err(|_| ApiError::invalid("`cursor` is not one that a list gave"));
    text.map(parse).transpose()
}
