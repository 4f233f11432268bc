//! Encryption: only to a server whose certificate is verified.
#![expect(clippy::unwrap_used, reason = "a test: what fails here fails it")]

mod support;

use hapax_postgres::{Database, Refused, Settings};
use hapax_testing::PostgresServer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A CA, and a certificate by it for these names: PEM of the CA, the certificate, its key.
fn certificate(names: &[&str]) -> (String, String, String) {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    (ca_pem, signed.pem(), key.serialize_pem())
}

#[test]
fn a_server_is_verified_or_refused() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let (ca, certificate, key) = certificate(&["127.0.0.1"]);
    let (stranger, ..) = self::certificate(&["127.0.0.1"]);
    let certificate = server.write("server.crt", &certificate);
    let key = server.write("server.key", &key);
    server
        .sql("postgres", &format!("alter system set ssl_cert_file = '{}'", certificate.display()));
    server.sql("postgres", &format!("alter system set ssl_key_file = '{}'", key.display()));
    server.set("ssl", "on");
    let url = server.database("it");
    let files = tempfile::tempdir().unwrap();
    let root = |name: &str, pem: &str| {
        let path = files.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let (ours, theirs) = (root("ours", &ca), root("theirs", &stranger));
    let encrypted = format!("{url}?sslmode=require&sslrootcert={ours}");
    let settings = Settings::parse(&encrypted).unwrap();
    assert!(settings.is_encrypted());
    let database = Database::connect(settings, Some(&support::create(1))).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let (mut store, claim) = support::claimed(&database, 0, cache.path());
    use hapax_store::Store;
    store.append(claim.epoch, 1, b"sealed").unwrap();
    hapax_testing::until("the batch", || store.durable().unwrap() == 1);
    let asked = "select bool_and(ssl) from pg_stat_ssl join pg_stat_activity using (pid)
                 where application_name like 'hapax%'";
    assert_eq!(server.sql("it", asked).trim(), "t", "every connection is encrypted");
    let localhost = encrypted.replace("@127.0.0.1", "@localhost");
    let unverified = format!("{url}?sslmode=require&sslrootcert={theirs}");
    for refused in [localhost, unverified] {
        let settings = Settings::parse(&refused).unwrap();
        let told = Database::connect(settings, None).unwrap_err();
        assert!(matches!(told, Refused::Unreachable { .. }), "{refused}: {told}");
        assert!(told.to_string().contains("certificate"), "{refused}: {told}");
    }
}
