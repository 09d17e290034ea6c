//! Where Redis is: one server, one that Sentinels name, or a cluster.
//!
//! ```text
//!   redis://[user:password@]host[:port][/database]        rediss:// with TLS
//!   redis+sentinel://[user:password@]host[:port],…[/service[/database]]
//!   redis+cluster://[user:password@]host[:port],…
//! ```
//!
//! The credentials are those of Redis itself; Sentinels are asked without any. `rediss+sentinel`
//! and `rediss+cluster` are the same with TLS.

use redis::{ConnectionInfo, IntoConnectionInfo as _};

/// How to find the servers.
#[derive(Clone, Debug)]
pub(crate) enum Deployment {
    Single(Server),
    Sentinel { sentinels: Vec<Server>, service: String, access: Access },
    Cluster { seeds: Vec<Server> },
}

/// One server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) info: ConnectionInfo,
    pub(crate) access: Access,
}

/// What every server of a deployment is asked with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// `redis` or `rediss`.
    scheme: String,
    /// `user:password@`, or nothing.
    login: String,
    database: String,
}

impl Access {
    /// The server at an address, asked in this way.
    pub(crate) fn server(&self, address: &str) -> Result<Server, String> {
        let url = format!("{}://{}{address}/{}", self.scheme, self.login, self.database);
        let info = url.into_connection_info().map_err(|_| format!("`{address}` is no host and port"))?;
        Ok(Server { info, access: self.clone() })
    }
}

impl Server {
    /// Its host and port.
    pub(crate) fn address(&self) -> String {
        self.info.addr().to_string()
    }
}

/// Reads a URL. The error says nothing of it, since it may hold a password.
pub(crate) fn read(url: &str) -> Result<Deployment, String> {
    let unknown = || {
        "use redis://, rediss://, redis+sentinel:// or redis+cluster://, with a host and a port".to_owned()
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
    let (tls, kind) = match scheme {
        "redis" => ("redis", ""),
        "rediss" => ("rediss", ""),
        "redis+sentinel" => ("redis", "sentinel"),
        "rediss+sentinel" => ("rediss", "sentinel"),
        "redis+cluster" => ("redis", "cluster"),
        "rediss+cluster" => ("rediss", "cluster"),
        _ => return Err(unknown()),
    };
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (format!("{login}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let access = Access { scheme: tls.to_owned(), login, database: String::new() };
    let hosts: Vec<&str> = hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    if hosts.is_empty() {
        return Err(unknown());
    }
    match kind {
        "sentinel" => {
            let (service, database) = path.split_once('/').unwrap_or((path, ""));
            let service = if service.is_empty() { "mymaster" } else { service };
            let access = Access { database: database.to_owned(), ..access };
            let plain = Access { scheme: tls.to_owned(), ..Access::default() };
            let with_port =
                |host: &&str| if host.contains(':') { (*host).to_owned() } else { format!("{host}:26379") };
            let sentinels =
                hosts.iter().map(|host| plain.server(&with_port(host))).collect::<Result<_, _>>()?;
            // What is to be asked later is looked at now.
            access.server("localhost:6379")?;
            Ok(Deployment::Sentinel { sentinels, service: service.to_owned(), access })
        }
        "cluster" => {
            let seeds = hosts.iter().map(|host| access.server(host)).collect::<Result<_, _>>()?;
            Ok(Deployment::Cluster { seeds })
        }
        _ if hosts.len() == 1 => {
            Ok(Deployment::Single(Access { database: path.to_owned(), ..access }.server(hosts[0])?))
        }
        _ => Err("several hosts need redis+sentinel:// or redis+cluster://".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(servers: &[Server]) -> Vec<String> {
        servers.iter().map(Server::address).collect()
    }

    #[test]
    fn every_kind_of_url_is_read() {
        let single = read("redis://u:p%40ss@example.org:7000/3").expect("a URL");
        assert!(matches!(single, Deployment::Single(server) if server.address() == "example.org:7000"
            && server.info.redis_settings().db() == 3 && server.info.redis_settings().password() == Some("p@ss")));
        let sentinel = read("redis+sentinel://:secret@a:1,b/orders/2").expect("a URL");
        let Deployment::Sentinel { sentinels, service, access } = sentinel else { panic!("not Sentinel") };
        assert_eq!(
            (addresses(&sentinels), service.as_str()),
            (vec!["a:1".to_owned(), "b:26379".to_owned()], "orders")
        );
        assert_eq!(sentinels[0].info.redis_settings().password(), None);
        assert_eq!(
            access.server("c:9").expect("an address").info.redis_settings().password(),
            Some("secret")
        );
        let cluster = read("redis+cluster://a:1,b:2").expect("a URL");
        assert!(matches!(cluster, Deployment::Cluster { seeds } if addresses(&seeds) == ["a:1", "b:2"]));
        assert!(read("rediss://example.org").is_ok());
    }

    #[test]
    fn what_is_no_url_is_refused_without_its_password() {
        for url in
            ["", "redis", "http://a", "redis://", "redis://a,b", "redis+cluster://", "redis://u:secret@a:x/1"]
        {
            let problem = read(url).expect_err(url);
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
