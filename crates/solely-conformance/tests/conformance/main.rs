//! The promises, on every engine.

mod beside;
mod bus;
mod ending;
mod gone;
mod growth;
mod hot;
mod postgres;
mod schema;
mod sqlite;
mod tls;
mod upgrade;
