//! The promises, on every engine.

mod crash;
mod cut;
mod growth;
mod postgres;
mod sqlite;
mod swarm;
