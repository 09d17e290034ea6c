//! The promises, on every engine.

mod crash;
mod cut;
mod postgres;
mod sqlite;
mod swarm;
