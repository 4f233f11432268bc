create schema hapax;
create table hapax.cluster (
  single       boolean primary key default true check (single),
  format       int    not null, -- of these tables; a newer one is refused untouched
  feature      int    not null, -- what every node may write
  id           uuid   not null, -- drawn once
  lineage      uuid   not null, -- drawn anew when an operator accepts a loss
  partitions   int    not null, -- fixed
  fingerprints bytea,           -- the secret of fingerprints
  leases       bytea  not null, -- seals leases
  links        bytea  not null, -- nodes know each other by it
  catalog      bigint not null default 0 -- raised with every change of what is shared
);
create table hapax.node (
  id        uuid     primary key, -- drawn at every start
  name      text     not null,
  address   text     not null,
  release   text     not null,
  feature   int      not null,    -- the highest it knows
  state     smallint not null,    -- 1 standby, 2 serving, 3 draining
  heartbeat bigint   not null default 0,
  told      bigint   not null default 0 -- the latest partition time it answered with, ms
) with (fillfactor = 50);
create table hapax.partition (
  number   int    primary key,
  epoch    bigint not null default 0 check (epoch < 8388608),
  claim    uuid,  -- drawn with every claim: epochs may repeat after a restore
  owner    uuid,  -- a node; null: free
  intended uuid   -- for whom the last owner left it
) with (fillfactor = 50);
create table hapax.journal (
  partition int    not null,
  sequence  bigint not null,
  epoch     bigint not null,
  chain     bigint not null, -- over cluster, partition, the row before and the batch
  batch     bytea  not null,
  primary key (partition, sequence)
) partition by list (partition);
create table hapax.manifest (
  partition int    primary key,
  version   bigint not null,
  through   bigint not null,
  chain     bigint not null,
  bytes     bytea  not null
);
alter table hapax.manifest alter bytes set storage external;
create table hapax.chunk (
  partition int    not null,
  run       bigint not null, -- epoch << 40 | number: no two owners write one name
  at        bigint not null,
  bytes     bytea  not null,
  primary key (partition, run, at)
);
alter table hapax.chunk alter bytes set storage external;
alter table hapax.chunk set (autovacuum_vacuum_scale_factor = 0.1,
  toast.autovacuum_vacuum_scale_factor = 0.1, vacuum_truncate = off, toast.vacuum_truncate = off);
create table hapax.document (
  name    text   primary key,
  version bigint not null,
  bytes   bytea  not null
);
