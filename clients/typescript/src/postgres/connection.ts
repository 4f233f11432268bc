/** The parts of `pg` that are used: any driver or pool with these methods will do. */

/** What a query returns. */
export interface Rows {
  // biome-ignore lint/suspicious/noExplicitAny: rows have the columns of their statement
  rows: any[];
  rowCount: number | null;
}

/** A connection on which the caller has begun a transaction: `pg.Client` or `pg.PoolClient`. */
export interface Connection {
  query(text: string, values?: unknown[]): Promise<Rows>;
}

/** A connection of a pool, to be given back. */
export interface PooledConnection extends Connection {
  /** With an error the connection is closed instead of being used again. */
  release(error?: Error | boolean): void;
  /** Events of the connection, where the driver has them. */
  on?(event: "error", listener: (error: Error) => void): unknown;
  removeListener?(event: "error", listener: (error: Error) => void): unknown;
}

/** A pool of connections: `pg.Pool`. */
export interface Pool<C extends PooledConnection = PooledConnection> {
  connect(): Promise<C>;
}
