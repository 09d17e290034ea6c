//! The promises, on every engine.

mod bus;
mod gone;
mod growth;
mod postgres;
mod schema;
mod sqlite;
mod tls;
