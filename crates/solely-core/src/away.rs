//! Whether the store is away, as far as this process knows.
//!
//! Lines of callers ask it: a batch that was cut off at its COMMIT waits to hear what became of it, which may take
//! until the store is back, but those behind it have asked for nothing yet and are told at once.

use std::future::Future;
use std::pin::pin;

use tokio::sync::watch;

use crate::error::StoreError;

/// What an engine that can be away knows of that. Clones hear of the same.
#[derive(Clone, Debug)]
pub struct Away(Option<watch::Receiver<Option<String>>>);

impl Away {
    /// Of a store that is where its process is.
    pub const NEVER: Self = Self(None);

    /// Heard from whoever knows why it is away, if it is.
    pub fn heard(why: watch::Receiver<Option<String>>) -> Self {
        Self(Some(why))
    }

    /// Why it is away at this moment, if it is.
    pub fn now(&self) -> Option<StoreError> {
        self.0.as_ref()?.borrow().clone().map(StoreError::Unavailable)
    }

    /// Waits until it is away.
    pub async fn until(&self) -> StoreError {
        let Some(mut why) = self.0.clone() else { return std::future::pending().await };
        match why.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()) {
            Some(why) => StoreError::Unavailable(why),
            // Nobody is left who could know.
            None => std::future::pending().await,
        }
    }

    /// Waits until it is back.
    async fn back(&self) {
        if let Some(mut why) = self.0.clone()
            && why.wait_for(Option::is_none).await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Does work to its end. Whenever the store is found away meanwhile, those who wait for the work are refused.
    pub async fn refusing<T>(&self, work: impl Future<Output = T>, refuse: impl Fn(StoreError)) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                why = self.until() => refuse(why),
            }
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.back() => {}
            }
        }
    }
}
