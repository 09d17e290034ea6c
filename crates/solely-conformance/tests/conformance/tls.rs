//! `sslmode`, against a PostgreSQL that encrypts and one that does not.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use solely_core::{Store as _, StoreError};
use solely_postgres::{Options, PostgresStore};
use solely_testing::{PostgresServer, fresh_database};
use tempfile::TempDir;

/// A server whose certificate is for `localhost` alone, and the file of the authority that
/// signed it.
struct Site {
    server: PostgresServer,
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let authority = authority();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).expect("writes");
        std::fs::write(folder.path().join("other.pem"), self::authority().pem()).expect("writes");
        let key = KeyPair::generate().expect("a key");
        let host = CertificateParams::new(vec!["localhost".to_owned()]).expect("a host");
        let certificate = host.signed_by(&key, &authority).expect("is signed");
        let server = PostgresServer::start_encrypted(&certificate.pem(), &key.serialize_pem());
        Self { server, folder }
    }

    /// Opens the store at a host with a mode and an authority.
    async fn open(&self, host: &str, mode: &str, authority: Option<&str>) -> Result<(), StoreError> {
        let port = self.server.port();
        let place = |file| format!("&sslrootcert={}", self.folder.path().join(file).display());
        let root = authority.map(place).unwrap_or_default();
        let url = format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}{root}");
        let store = PostgresStore::open(&url, &Options::default()).await?;
        store.health().await
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

#[tokio::test]
async fn each_mode_verifies_what_it_says() {
    let site = Site::new();
    let (ours, other) = (Some("ca.pem"), Some("other.pem"));
    let cases = [
        ("127.0.0.1", "disable", None, true),
        ("127.0.0.1", "prefer", None, true),
        ("127.0.0.1", "require", None, true),
        ("127.0.0.1", "require", other, false),
        ("127.0.0.1", "verify-ca", ours, true),
        ("127.0.0.1", "verify-ca", other, false),
        ("localhost", "verify-full", ours, true),
        ("localhost", "verify-full", other, false),
        ("127.0.0.1", "verify-full", ours, false),
    ];
    for (host, mode, authority, expected) in cases {
        let opened = site.open(host, mode, authority).await;
        assert_eq!(opened.is_ok(), expected, "{host} {mode} {authority:?}: {opened:?}");
    }
}

/// A server that cannot encrypt is refused by whoever insists.
#[tokio::test]
async fn who_insists_is_not_served_in_the_clear() {
    let url = fresh_database();
    let open = async |mode: &str| {
        PostgresStore::open(&format!("{url}?sslmode={mode}"), &Options::default()).await.map(drop)
    };
    open("prefer").await.expect("in the clear");
    assert!(matches!(open("require").await, Err(StoreError::Unavailable(_))));
}
