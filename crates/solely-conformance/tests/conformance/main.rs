//! The promises, on every engine.

mod growth;
mod postgres;
mod schema;
mod sqlite;
