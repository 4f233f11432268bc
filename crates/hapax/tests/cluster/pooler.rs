//! Nodes behind PgBouncer in transaction mode, where every statement may go to another session.

use std::net::TcpStream;
use std::path::Path;

use hapax_testing::{Beside, free_address, skip, until};

use crate::{Cluster, ends_whole, fence, load, names, says, serves};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// How the pooler of a cluster is started, on a port that stays the same.
struct Pooler<'a> {
    cluster: &'a Cluster,
    port: u16,
}

impl Pooler<'_> {
    fn start(&self) -> Beside {
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 6\nunix_socket_dir =\n",
            self.cluster.server.port(),
            self.port
        );
        let settings = self.cluster.server.write("pgbouncer.ini", &settings);
        let program = Path::new(PROGRAM);
        let pooler = self.cluster.server.beside(program, &["-q", settings.to_str().unwrap()]);
        until("PgBouncer", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
        pooler
    }
}

#[test]
fn nodes_behind_a_pooler_survive_kills_of_the_node_and_of_the_pooler() {
    let Some(cluster) = Cluster::start() else { return };
    if !Path::new(PROGRAM).is_file() {
        return skip("PgBouncer", "pgbouncer");
    }
    let pooler = Pooler { cluster: &cluster, port: free_address().port() };
    let pooling = pooler.start();
    let url = format!("postgres://postgres@127.0.0.1:{}/queues?pooled=true", pooler.port);
    let mut first = cluster.setup_at("a", &url).start();
    serves(&first);
    let second = cluster.setup_at("b", &url).start();
    names(&second, &first);
    let load = load(&[&first, &second]);
    let before = fence(&[&first, &second]);
    load.gets_on(20);
    // The pooler is killed: everybody waits, and nobody takes over.
    let owners = cluster.owners();
    drop(pooling);
    says(&first, "cut off");
    let pooling = pooler.start();
    load.gets_on(20);
    assert_eq!(cluster.owners(), owners, "nobody took over");
    // The node is killed.
    first.kill();
    serves(&second);
    load.gets_on(20);
    // The pooler is killed beside its new owner, and comes back at once.
    drop(pooling);
    let _pooling = pooler.start();
    load.gets_on(20);
    let after = fence(&[&second]);
    assert!(after > before, "fences grow: {before}, {after}");
    let first = first.setup.start();
    names(&first, &second);
    ends_whole(load, &[&first, &second]);
}
