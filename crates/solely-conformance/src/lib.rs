//! Every promise of the primitives as a named test, stamped onto every engine.
//!
//! A test is a function of a [`World`]: a fresh store of some engine, whose clock it can move
//! and which it can close and open again. [`stamp!`] makes one `#[tokio::test]` of each for an
//! engine. Nothing here waits by sleeping: time is moved, or a condition is awaited.

pub mod access;
pub mod cache;
pub mod commit;
pub mod enrich;
pub mod event;
pub mod feed;
pub mod job;
pub mod lease;
pub mod liveness;
pub mod model_job;
pub mod model_lease;
pub mod model_reserve;
pub mod queue;
pub mod rescue;
pub mod reserve;
pub mod revive;
pub mod run;
mod seed;
pub mod settle;
mod stamp;
pub mod upkeep;
pub mod upstream;
pub mod waitlist;
pub mod worker;
mod world;

pub use world::{Engine, World};
