//! With TLS: protocols by ALPN, certificates of clients, certificates that change.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hapax_server::listen::{Limits, Tls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::port::{Client, Port, SHORT, get_path, read_to_end};
use hapax_testing::{eventually, in_time};

/// Signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Signed {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, purpose: ExtendedKeyUsagePurpose) -> Signed {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let certificate_pem = certificate.pem();
        Signed { certificate: certificate.der().clone(), certificate_pem, key }
    }

    fn server(&self) -> Signed {
        self.sign(ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self) -> Signed {
        self.sign(ExtendedKeyUsagePurpose::ClientAuth)
    }
}

fn files(directory: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("certificate.pem"),
        key: directory.join("key.pem"),
        client_ca: None,
    }
}

impl Signed {
    fn write(&self, files: &TlsFiles) {
        fs::write(&files.certificate, &self.certificate_pem).unwrap();
        fs::write(&files.key, self.key.serialize_pem()).unwrap();
    }
}

fn connector(authority: &Authority, alpn: &[&str], client: Option<&Signed>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let key = PrivateKeyDer::try_from(client.key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![client.certificate.clone()], key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn connect(port: &Port, connector: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    in_time(connector.connect(name, port.connect().await)).await
}

/// A port with a certificate of a new authority.
async fn open(limits: Limits) -> (TempDir, Authority, Signed, Port) {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let signed = authority.server();
    let files = files(directory.path());
    signed.write(&files);
    let port = Port::open(limits, Some(Tls::load(files).unwrap())).await;
    (directory, authority, signed, port)
}

#[tokio::test]
async fn the_protocol_is_chosen_by_alpn() {
    let (_directory, authority, _, port) = open(Limits::default()).await;
    let both = connector(&authority, &["h2", "http/1.1"], None);
    let stream = connect(&port, &both).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    Client::http2(stream).await.echo("two").await;

    for alpn in [&["http/1.1"][..], &[]] {
        let stream = connect(&port, &connector(&authority, alpn, None)).await.unwrap();
        assert_ne!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = Client::http1(stream).await;
        client.echo(&"long ".repeat(100_000)).await;
        let (_, peer) = client.ask(get_path("/peer")).await;
        assert!(peer.ends_with(b" true"), "{peer:?}");
    }
    assert!(connect(&port, &connector(&authority, &["http/3"], None)).await.is_err());
    assert!(connect(&port, &connector(&Authority::new(), &[], None)).await.is_err());
    port.close().await;
}

#[tokio::test]
async fn plain_text_is_no_handshake() {
    let (_directory, _authority, _, port) = open(Limits::default()).await;
    let mut stream = port.connect().await;
    stream.write_all(b"GET /peer HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    eventually("it is counted", async || port.stats.handshakes_failed.get() == 1).await;
    port.close().await;
}

#[tokio::test]
async fn mutual_tls_refuses_who_has_no_certificate_of_the_authority() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let files =
        TlsFiles { client_ca: Some(directory.path().join("ca.pem")), ..files(directory.path()) };
    authority.server().write(&files);
    fs::write(files.client_ca.as_ref().unwrap(), authority.0.pem()).unwrap();
    let port = Port::open(Limits::default(), Some(Tls::load(files).unwrap())).await;

    let known = connector(&authority, &["h2"], Some(&authority.client()));
    Client::http2(connect(&port, &known).await.unwrap()).await.echo("known").await;

    for (failed, client) in [(1, None), (2, Some(stranger.client()))] {
        let connector = connector(&authority, &["http/1.1"], client.as_ref());
        // In TLS 1.3 the client has finished before the server has looked at its certificate.
        if let Ok(mut stream) = connect(&port, &connector).await {
            let _ = stream.write_all(b"GET /peer HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            assert!(in_time(stream.read_u8()).await.is_err());
        }
        eventually("it is counted", async || port.stats.handshakes_failed.get() == failed).await;
    }
    port.close().await;
}

async fn served(port: &Port, connector: &TlsConnector) -> CertificateDer<'static> {
    let stream = connect(port, connector).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

#[tokio::test]
async fn a_changed_certificate_is_served_and_a_bad_one_is_not() {
    let (directory, authority, first, port) = open(Limits::default()).await;
    let files = files(directory.path());
    let connector = connector(&authority, &["http/1.1"], None);
    assert_eq!(served(&port, &connector).await, first.certificate);
    let mut old = Client::http1(connect(&port, &connector).await.unwrap()).await;
    old.echo("before").await;

    // First the certificate alone: the key does not fit. Then nonsense. Then nothing.
    let second = authority.server();
    let spoil: [(&str, &dyn Fn()); 3] = [
        ("a lone certificate", &|| {
            fs::write(&files.certificate, &second.certificate_pem).unwrap();
        }),
        ("nonsense", &|| fs::write(&files.certificate, "nonsense").unwrap()),
        ("no key", &|| fs::remove_file(&files.key).unwrap()),
    ];
    for (what, spoil) in spoil {
        let refused = port.stats.certificates_refused.get();
        spoil();
        eventually(what, async || port.stats.certificates_refused.get() > refused).await;
    }
    assert_eq!(served(&port, &connector).await, first.certificate);
    let replaced = port.stats.certificates_replaced.get();

    second.write(&files);
    eventually("both together are loaded", async || {
        port.stats.certificates_replaced.get() > replaced
    })
    .await;
    assert_eq!(served(&port, &connector).await, second.certificate);
    old.echo("after").await;
    port.close().await;
}

#[tokio::test]
async fn a_hangup_loads_the_certificate_again() {
    // Before anything is sent: without a handler the signal would end the tests.
    let kind = tokio::signal::unix::SignalKind::hangup();
    let _handled = tokio::signal::unix::signal(kind).unwrap();
    let (_directory, authority, signed, port) = open(Limits::default()).await;
    let mut sent = 0;
    eventually("the hangup is heard", async || {
        // The port may not listen to signals yet: told again until it hears.
        if port.stats.certificates_replaced.get() == 0 {
            let kill = format!("kill -HUP {}", std::process::id());
            let status = std::process::Command::new("sh").args(["-c", &kill]).status().unwrap();
            assert!(status.success());
            sent += 1;
        }
        port.stats.certificates_replaced.get() > 0
    })
    .await;
    assert!(sent > 0);
    let connector = connector(&authority, &["http/1.1"], None);
    assert_eq!(served(&port, &connector).await, signed.certificate);
    port.close().await;
}

#[tokio::test]
async fn half_a_handshake_is_cut() {
    let limits = Limits { handshake: SHORT, ..Limits::default() };
    let (_directory, authority, _, port) = open(limits).await;
    // Nothing, and the first bytes of a record that announces 512.
    let starts = [&[][..], &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00]];
    let cut = starts.map(async |start| {
        let mut stream = port.connect().await;
        stream.write_all(start).await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, b"");
    });
    futures_util::future::join_all(cut).await;
    eventually("both are counted", async || port.stats.handshakes_failed.get() == 2).await;
    let stream = connect(&port, &connector(&authority, &["h2"], None)).await.unwrap();
    Client::http2(stream).await.echo("undisturbed").await;
    port.close().await;
}

#[tokio::test]
async fn beyond_the_bound_no_handshake_is_made() {
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let (_directory, authority, _, port) = open(limits).await;
    let connector = connector(&authority, &["h2"], None);
    let mut client = Client::http2(connect(&port, &connector).await.unwrap()).await;
    client.echo("the one").await;
    assert!(connect(&port, &connector).await.is_err());
    assert_eq!(port.stats.refused.get(), 1);
    client.echo("undisturbed").await;
    port.close().await;
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let files =
        TlsFiles { client_ca: Some(directory.path().join("ca.pem")), ..files(directory.path()) };
    let client_ca = files.client_ca.clone().unwrap();
    let check = |name: &str, why: &str| {
        let error = Tls::load(files.clone()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(why), "{error}");
        assert!(!error.contains("BEGIN PRIVATE KEY-----\n"), "{error}");
    };
    check("certificate.pem", "cannot read");
    fs::write(&files.certificate, "").unwrap();
    check("certificate.pem", "no certificate");
    let authority = Authority::new();
    let (one, two) = (authority.server(), authority.server());
    one.write(&files);
    fs::write(&files.key, &one.certificate_pem).unwrap();
    check("key.pem", "no private key");
    fs::write(&files.key, &one.key.serialize_pem()[..60]).unwrap();
    check("key.pem", "PEM");
    two.write(&files);
    check("ca.pem", "cannot read");
    fs::write(&client_ca, "").unwrap();
    check("ca.pem", "no certificate");
    fs::write(&client_ca, authority.0.pem()).unwrap();
    Tls::load(files.clone()).unwrap();
    fs::write(&files.key, one.key.serialize_pem()).unwrap();
    check("key.pem", "together");
}
