//! Processes and connections that die.

mod crash;
mod cut;
mod rate;
mod restart;
