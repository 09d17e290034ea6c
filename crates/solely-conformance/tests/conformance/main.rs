//! The promises, on every engine.

mod crash;
mod postgres;
mod sqlite;
mod swarm;
