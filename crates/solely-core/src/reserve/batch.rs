//! What is decided together, and its place behind what was sealed before it.
//!
//! Of one line two batches may be under way ([`super::combiner`]), and whoever came first is decided first. So each batch
//! knows the one before it, and an engine does one of two things: it waits until that one is *over*, or it waits until that
//! one is *sent* and sends its own where it cannot be overtaken.

use std::sync::Arc;

use tokio::sync::watch;

use super::operation::Request;

/// Requests that are decided in their order, as one transaction. Dropped, it is over.
#[derive(Debug)]
pub struct Batch {
    /// What is asked for.
    pub requests: Arc<Vec<Request>>,
    ahead: Option<Ahead>,
    sent: watch::Sender<bool>,
}

/// A batch, as the next one sees it.
#[derive(Clone, Debug)]
pub struct Ahead(watch::Receiver<bool>);

impl Batch {
    /// A batch that nobody is ahead of.
    pub fn of(requests: Vec<Request>) -> Self {
        Self { requests: Arc::new(requests), ahead: None, sent: watch::Sender::new(false) }
    }

    /// A batch behind another.
    pub fn behind(ahead: Option<Ahead>, requests: Vec<Request>) -> Self {
        Self { ahead, ..Self::of(requests) }
    }

    /// This one, for the next.
    pub fn ahead(&self) -> Ahead {
        Ahead(self.sent.subscribe())
    }

    /// It is on its way: whatever is sent now, the same way, comes after it.
    pub fn sent(&self) {
        self.sent.send_replace(true);
    }

    /// Waits until the one before this is on its way, or over.
    pub async fn ahead_sent(&self) {
        if let Some(Ahead(sent)) = &self.ahead {
            let _ = sent.clone().wait_for(|sent| *sent).await;
        }
    }

    /// Waits until the one before this is over.
    pub async fn ahead_over(&self) {
        if let Some(Ahead(sent)) = &self.ahead {
            let _ = sent.clone().wait_for(|_| false).await;
        }
    }
}
