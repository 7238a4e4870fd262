-- Deletes a session and returns the number of keys. ARGV: prefix, tenant, agent, session id.
return forget(ARGV[1], ARGV[2] .. US .. ARGV[3] .. US .. ARGV[4])
