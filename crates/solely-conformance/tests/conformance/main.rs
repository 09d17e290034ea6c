//! The promises, on every engine.

mod crash;
mod sqlite;
