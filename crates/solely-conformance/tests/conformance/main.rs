//! The promises, on every engine.

mod sqlite;
