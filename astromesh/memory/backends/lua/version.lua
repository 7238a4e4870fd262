-- The version of the keys, false of a version before 2. ARGV: prefix.
return redis.call('GET', ARGV[1] .. ':version')
