//! The promises, on every engine.

mod bus;
mod growth;
mod postgres;
mod schema;
mod sqlite;
mod tls;
