//! Which server has a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{FromRedisValue as _, Pipeline, Value};

use crate::node::{Connection, Node, Patience};
use crate::script::Scripts;
use crate::url::{Access, Deployment, Server};

/// The servers, and what each of them has.
#[derive(Clone, Default)]
pub(crate) struct Topology {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// In a cluster: the first and the last slot of a range, and its node.
    ranges: Vec<(u16, u16, usize)>,
}

const SLOTS: u16 = 16_384;
/// The mark of the only server.
const MARK: &str = "solely:followed";

impl Topology {
    /// The place of the node that has a key, if it is known.
    pub(crate) fn place(&self, key: &str) -> Option<usize> {
        if self.ranges.is_empty() {
            return (!self.nodes.is_empty()).then_some(0);
        }
        let slot = slot(key);
        let range = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|&(_, _, place)| place)
    }

    /// The place of the node that has all of these keys and can see to them in one step.
    pub(crate) fn place_of_all<'a>(&self, mut keys: impl Iterator<Item = &'a str>) -> Option<usize> {
        let first = keys.next()?;
        let (place, of_first) = (self.place(first)?, slot(first));
        (self.ranges.is_empty() || keys.all(|key| slot(key) == of_first)).then_some(place)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        !self.ranges.is_empty()
    }
}

/// The slot of a key: that of its hash tag, if it has one.
fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % SLOTS
}

/// A name for the mark of a node that has this slot, and these ranges in all: with others its copies
/// are others, and there is no mark of how far they follow.
fn mark_in(wanted: u16, ranges: &[(u16, u16)]) -> String {
    let ranges: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
    let ranges = crc16::State::<crc16::XMODEM>::calculate(ranges.join(",").as_bytes());
    (0..u32::MAX)
        .map(|n| format!("{MARK}:{{{n}}}:{ranges:04x}"))
        .find(|name| slot(name) == wanted)
        .unwrap_or_else(|| MARK.to_owned())
}

/// Finds the servers, keeping the nodes that are still among them.
pub(crate) async fn find(
    deployment: &Deployment,
    known: &Topology,
    patience: Patience,
    scripts: &Scripts,
) -> Result<Topology, String> {
    match deployment {
        Deployment::Single(server) => Ok(only(known, server.clone())),
        Deployment::Sentinel { sentinels, service, access } => {
            let server = master(sentinels, service, access, patience).await?;
            Ok(only(known, server))
        }
        Deployment::Cluster { seeds } => cluster(seeds, known, patience, scripts).await,
    }
}

/// One server that has everything.
fn only(known: &Topology, server: Server) -> Topology {
    let node = known.nodes.iter().find(|node| node.address == server.address()).cloned();
    let node = node.unwrap_or_else(|| Node::new(server, MARK.to_owned()));
    Topology { nodes: vec![node], ranges: Vec::new() }
}

/// The server that the first Sentinel to answer names.
async fn master(
    sentinels: &[Server],
    service: &str,
    access: &Access,
    patience: Patience,
) -> Result<Server, String> {
    let mut why = String::new();
    for sentinel in sentinels {
        let connection = match Connection::open_plain(sentinel, patience).await {
            Ok(connection) => connection,
            Err(error) => {
                why = format!("{}: {error}", sentinel.address());
                continue;
            }
        };
        let mut ask = Pipeline::new();
        ask.cmd("SENTINEL").arg("get-master-addr-by-name").arg(service);
        match connection.ask(&ask, patience.command).await {
            Ok(answers) => {
                if let Ok(Some((host, port))) = Option::<(String, String)>::from_redis_value(
                    answers.into_iter().next().unwrap_or(Value::Nil),
                ) {
                    return access.server(&format!("{host}:{port}"));
                }
                why = format!("{} knows no `{service}`", sentinel.address());
            }
            Err(error) => why = format!("{}: {error:?}", sentinel.address()),
        }
    }
    Err(why)
}

/// The masters of a cluster and their slots, from the first node to answer.
async fn cluster(
    seeds: &[Server],
    known: &Topology,
    patience: Patience,
    scripts: &Scripts,
) -> Result<Topology, String> {
    let mut ask = Pipeline::new();
    ask.cmd("CLUSTER").arg("SLOTS");
    let mut why = String::new();
    let connected = known.nodes.iter().filter_map(|node| Some((node.server.clone(), node.connection()?)));
    let connected: Vec<_> = connected.map(|(server, connection)| (server, Some(connection))).collect();
    for (server, connection) in connected.into_iter().chain(seeds.iter().map(|seed| (seed.clone(), None))) {
        let connection = match connection {
            Some(connection) => connection,
            None => match Connection::open(&server, patience, scripts).await {
                Ok(connection) => connection,
                Err(error) => {
                    why = format!("{}: {error}", server.address());
                    continue;
                }
            },
        };
        let Ok(answers) = connection.ask(&ask, patience.command).await else { continue };
        match topology_of(&answers, &server, known) {
            Some(topology) => return Ok(topology),
            None => why = format!("{} serves no slots", server.address()),
        }
    }
    Err(why)
}

fn topology_of(answers: &[Value], asked: &Server, known: &Topology) -> Option<Topology> {
    let Value::Array(ranges) = answers.first()? else { return None };
    let mut by_address: BTreeMap<String, Vec<(u16, u16)>> = BTreeMap::new();
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        let [first, last, Value::Array(master), ..] = parts.as_slice() else { continue };
        let (first, last) = (u16::from_redis_value_ref(first).ok()?, u16::from_redis_value_ref(last).ok()?);
        let host =
            master.first().and_then(|host| String::from_redis_value_ref(host).ok()).unwrap_or_default();
        let port = master.get(1).and_then(|port| u16::from_redis_value_ref(port).ok())?;
        // A node that does not know its own host is the one that was asked.
        let own = asked.address();
        let host =
            if host.is_empty() { own.rsplit_once(':').map_or(own.as_str(), |(host, _)| host) } else { &host };
        by_address.entry(format!("{host}:{port}")).or_default().push((first, last));
    }
    let mut topology = Topology::default();
    for (address, mut ranges) in by_address {
        ranges.sort_unstable();
        let place = topology.nodes.len();
        topology.ranges.extend(ranges.iter().map(|&(first, last)| (first, last, place)));
        topology.nodes.push(node_with(known, &address, &ranges, asked)?);
    }
    (!topology.ranges.is_empty()).then_some(topology)
}

/// The node at an address that has these slots: the one that is known, if it had the same.
fn node_with(known: &Topology, address: &str, ranges: &[(u16, u16)], asked: &Server) -> Option<Arc<Node>> {
    let had = |place: usize| {
        let of_place = known.ranges.iter().filter(|range| range.2 == place);
        of_place.map(|&(first, last, _)| (first, last)).eq(ranges.iter().copied())
    };
    let same = known.nodes.iter().enumerate().find(|(place, node)| node.address == address && had(*place));
    if let Some((_, node)) = same {
        return Some(node.clone());
    }
    let server = asked.access.server(address).ok()?;
    Some(Node::new(server, mark_in(ranges.first()?.0, ranges)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_that_redis_uses() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{}{bar}"), slot("foo{}{bar}"));
        assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
    }

    #[test]
    fn every_slot_has_a_mark() {
        for wanted in [0, 1, 5_461, 10_923, SLOTS - 1] {
            assert_eq!(slot(&mark_in(wanted, &[(wanted, SLOTS)])), wanted);
        }
        assert_ne!(mark_in(0, &[(0, 100)]), mark_in(0, &[(0, 200)]));
    }
}
