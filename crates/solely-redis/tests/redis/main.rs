//! The companion on real servers: one, with Sentinel, in a cluster; stopped, emptied, frozen.

mod bus;
mod cost;
mod enrich;
mod fault;
mod instance;
mod interleaving;
mod promise;
