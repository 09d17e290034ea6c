//! What is decided together, and its place behind what was sealed before it.
//!
//! Of one line two batches may be under way ([`super::combiner`]), and whoever came first is decided first. So each batch
//! knows those before it that are not over, and an engine does one of two things: it waits until they are *over*, or it waits
//! until they are *sent* and sends its own where it cannot overtake. Behind one that is not sent nothing is sealed.

use std::sync::Arc;

use tokio::sync::watch;

use super::operation::Request;

/// Requests that are decided in their order, as one transaction. Dropped, it is over.
#[derive(Debug)]
pub struct Batch {
    /// What is asked for.
    pub requests: Arc<Vec<Request>>,
    ahead: Vec<Ahead>,
    sent: watch::Sender<bool>,
}

/// A batch, as those behind it see it.
#[derive(Clone, Debug)]
pub struct Ahead(watch::Receiver<bool>);

impl Ahead {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Whether it is on its way, or over.
    pub fn is_sent(&self) -> bool {
        *self.0.borrow() || self.is_over()
    }

    /// Waits until it is on its way, or over.
    pub async fn until_sent(&self) {
        let _ = self.0.clone().wait_for(|sent| *sent).await;
    }
}

impl Batch {
    /// A batch that nobody is ahead of.
    pub fn of(requests: Vec<Request>) -> Self {
        Self { requests: Arc::new(requests), ahead: Vec::new(), sent: watch::Sender::new(false) }
    }

    /// A batch behind others.
    pub fn behind(ahead: Vec<Ahead>, requests: Vec<Request>) -> Self {
        Self { ahead, ..Self::of(requests) }
    }

    /// This one, for those behind it.
    pub fn ahead(&self) -> Ahead {
        Ahead(self.sent.subscribe())
    }

    /// It is on its way: whatever is sent now, the same way, comes after it.
    pub fn sent(&self) {
        self.sent.send_replace(true);
    }

    /// Waits until those before this are on their way, or over.
    pub async fn ahead_sent(&self) {
        for ahead in &self.ahead {
            ahead.until_sent().await;
        }
    }

    /// Waits until those before this are over.
    pub async fn ahead_over(&self) {
        for Ahead(sent) in &self.ahead {
            let _ = sent.clone().wait_for(|_| false).await;
        }
    }
}
