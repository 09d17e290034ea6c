//! The binary as a user meets it: real processes, real sockets.

mod access;
mod bad_input;
mod command;
mod enrich;
mod enrich_many;
mod feed;
mod feed_kill;
mod finder;
mod http;
mod jobs;
mod lifetime;
mod matching;
mod overload;
mod products;
mod products_many;
mod redis;
mod reserve;
mod reserve_many;
mod sample;
mod secret;
mod server;
mod setting;
mod socket;
mod torture;
mod walk;
