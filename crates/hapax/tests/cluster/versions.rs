//! A takeover on other releases of PostgreSQL, if `./test` has brought their programs.

use hapax_testing::{PostgresServer, other_programs};

use crate::{Cluster, ends_whole, load, names, serves};

#[test]
fn a_killed_node_is_replaced_on_other_releases_of_postgresql() {
    for programs in other_programs() {
        let cluster = Cluster::on(PostgresServer::start_from(programs, &[]));
        let (mut first, second) = cluster.two();
        let load = load(&[&first, &second]);
        load.gets_on(20);
        first.kill();
        serves(&second);
        load.gets_on(20);
        let first = first.setup.start();
        names(&first, &second);
        ends_whole(load, &[&first, &second]);
    }
}
