//! The primitives that solely stands on, and the runtime that drives them.
//!
//! | module | noun | who decides |
//! |---|---|---|
//! | [`job`] | durable unique work, claimed and settled under a fence | the job's row |
//! | [`lease`] | a named right with an end and a growing fence | the lease's row |
//! | [`cache`] | an entry with three ages: fresh, stale, gone | the entry's row, by version |
//! | [`event`] | timeline, audit and outbox in one table | written with what it tells of |
//! | [`upstream`] | timeout, concurrency, shared rate, breaker, pause | local but for rate and pause |
//! | [`liveness`] | which processes are alive | the store's clock |
//! | [`access`] | keys, scopes, user tokens, tickets | the key's row |
//! | [`companion`] | copies, hints and wake-ups beside the store | nothing in it does |
//! | [`enrich`] | provider links of places, looked up once | the place's entry, the live job |
//! | [`products`] | catalogues of slow plugins, fetched once | the entry, by the fence of the flight |
//! | [`reserve`] | boxes held, paid, collected, given back | the inventory's row, under the merchant's lock |
//! | [`feed`] | a paginated source copied one page per message | the partition's row |
//! | [`systems`] | all of them in one process, put together and set to work | |
//! | [`commit`] | claim → effect → settle as one value, one transaction | the engine |
//!
//! There is no SQL and no HTTP server here. A store is whatever implements [`store::Store`];
//! every engine passes the same conformance suite. Systems hand engines *values*
//! ([`commit::Commit`]), never callbacks, which is how an effect and the completion of the
//! job that caused it share a transaction without core knowing what a transaction is.

pub mod access;
pub mod alert;
pub mod away;
pub mod bus;
pub mod cache;
pub mod check;
pub mod clock;
pub mod commit;
pub mod companion;
pub mod config;
pub mod enrich;
pub mod error;
pub mod event;
pub mod fault;
pub mod feed;
pub mod id;
pub mod job;
pub mod json;
pub mod lease;
pub mod limits;
pub mod liveness;
pub mod metrics;
pub mod products;
pub mod queue;
pub mod reserve;
pub mod store;
pub mod systems;
pub mod upkeep;
pub mod upstream;
pub mod worker;

pub use clock::{Clock, Timestamp};
pub use commit::{Commit, Effect, Settled, Verdict};
pub use error::StoreError;
pub use id::{JobId, LeaseId, ProcessId, ReservationId, RunId, WaitId};
pub use json::Json;
pub use store::Store;
